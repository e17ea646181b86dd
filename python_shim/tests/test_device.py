# SPDX-License-Identifier: Apache-2.0
"""Tensors of a GPU. Nothing here runs on one: the tests of the host's tensors run once more over a
STAND-IN for CUDA and NCCL (standin.py), against the same references."""

from __future__ import annotations

import _thread
import queue
from typing import Any, Callable

import pytest
import test_features
import test_parity
import test_state
import torch
from test_features import (  # noqa: F401 - found here, they run here
    test_a_nan_without_a_scaler_raises_before_anything_is_updated,
    test_a_skipped_local_step_counts_as_an_iteration,
    test_an_infinity_skips_the_step_on_all_ranks_as_with_ddp,
    test_channels_last_equals_ddp,
    test_gradients_of_other_strides_set_by_hand,
    test_sparse_gradients_equal_dense_ones_and_stay_sparse,
    test_two_optimizers_in_turn,
    test_unused_parameters_equal_ddp,
)
from test_parity import (  # noqa: F401 - found here, they run here
    LOCAL,
    PLAIN,
    test_clipping_and_schedules_see_the_mean_gradient,
    test_micro_batches_alone_are_exchanged_by_the_step,
    test_outer_nesterov_equals_a_plain_reference,
    test_the_accumulated_domain_follows_sgd,
    test_two_ranks_equal_ddp_to_the_bit,
)
from test_state import (  # noqa: F401 - found here, they run here
    test_synchronize_makes_ranks_equal_and_training_goes_on,
    test_uneven_batches_with_local_steps,
    test_weights_of_ranks_make_the_mean_over_samples,
)

from msdu import _abi, _device

pytestmark = pytest.mark.usefixtures("on_the_stand_in")

# --- gradients ---


def test_three_ranks_equal_ddp() -> None:
    test_parity.test_one_step_rounds_equal_ddp("adamw", torch.float64)


@pytest.mark.parametrize(("has_no_sync", "wanted"), [(True, 6), (False, 18)])
def test_accumulated_gradients_equal_ddp(has_no_sync: bool, wanted: int) -> None:
    test_parity.test_accumulated_gradients_equal_ddp(has_no_sync, wanted)


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 2}], ids=["h1", "h2"])
def test_four_number_formats(settings: dict[str, Any]) -> None:
    test_features.test_four_number_formats_in_one_model(settings)


# --- local steps ---


def test_a_fixed_interval_equals_averaging_by_torch() -> None:
    test_parity.test_a_fixed_interval_equals_post_local_sgd("adam")


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 3}], ids=["h1", "h3"])
def test_buffers_are_averaged_with_the_parameters(settings: dict[str, Any]) -> None:
    test_features.test_buffers_are_averaged_with_the_parameters(settings)


# --- between steps, and the end ---


@pytest.mark.parametrize("name", ["gradient-int4", "delayed", "auto"])
def test_a_resumed_run_is_the_same_to_the_bit(name: str) -> None:
    test_state.test_a_resumed_run_is_the_same_to_the_bit(name, 7)


def test_uneven_batches_are_means_over_who_has_one() -> None:
    test_state.test_uneven_batches_are_means_over_who_has_one("adam")


# --- the calls themselves, without a device ---


class _Stream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


class _Library:
    """Takes notes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args)) or 0


class _Tensor:
    def __init__(self) -> None:
        self.streams: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.streams.append(stream)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Cuda context over a torch.cuda that takes notes; `here` is the current stream."""

    class Guard:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            made.guards.append(str(self.device))

        def __exit__(self, *_: Any) -> None:
            made.guards.append("back")

    made: Any = object.__new__(_device.Cuda)
    made.lib, made.handle, made.device = _Library(), 5, torch.device("cuda", 1)
    made._makers, made.guards, made.here = set(), [], _Stream(7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made.here)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    return made


def test_announcements_and_waits_name_the_current_stream_of_the_device(cuda: Any) -> None:
    cuda.announce(3, _abi.GRADIENT)
    cuda.here = _Stream(9)
    cuda.wait(_abi.ALL_TENSORS, _abi.GRADIENT)
    cuda.announce_parameters([0, 1])
    assert cuda.lib.calls == [
        ("tensor_ready_on", 5, 3, _abi.GRADIENT, 7),
        ("tensor_wait_on", 5, _abi.ALL_TENSORS, _abi.GRADIENT, 9),
        ("tensor_ready_on", 5, 0, _abi.PARAMETER, 9),
        ("tensor_ready_on", 5, 1, _abi.PARAMETER, 9),
    ]
    assert cuda.guards == ["cuda:1", "back"] * 4


def test_an_inner_pass_is_known_in_a_thread_of_the_engine() -> None:
    """There a hook of the outermost pass has no call of backward() below it, an inner one's has."""
    from msdu import _gradients

    def of_a_pass() -> bool:
        seen: list[bool] = []
        weight = torch.zeros(1, requires_grad=True)
        weight.register_post_accumulate_grad_hook(lambda _: seen.append(_gradients._nested()))
        weight.sum().backward()
        return seen[0]

    def in_another_thread(function: Callable[[], bool]) -> bool:
        found: queue.Queue[bool] = queue.Queue()
        _thread.start_new_thread(lambda: found.put(function()), ())  # as unknown as the engine's
        return found.get(timeout=60)

    assert not of_a_pass()
    assert not in_another_thread(_gradients._nested)
    assert in_another_thread(of_a_pass)


def test_memory_of_another_stream_is_recorded_for_the_one_that_waited(cuda: Any) -> None:
    same, other = _Tensor(), _Tensor()
    cuda.announce(0, _abi.GRADIENT)
    cuda.let_go([same])
    assert same.streams == []
    cuda.announce(0, _abi.GRADIENT)
    cuda.here = _Stream(9)
    held = [other]
    cuda.let_go(held)
    assert [one.cuda_stream for one in other.streams] == [9] and not held
