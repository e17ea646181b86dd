# SPDX-License-Identifier: Apache-2.0
"""The tests of the host's tensors once more on a real GPU: all ranks on the one, each as if on a
host of its own (NCCL_HOSTID), over sockets on lo. **Never run so far: no machine had one.** Run by
scripts/gpu.sh; needs torch with CUDA and libmsdu with MSDU_WITH_NCCL."""

from __future__ import annotations

import os
from typing import Any

import pytest
import test_features
import test_parity
import test_state
import torch
from test_parity import LOCAL, PLAIN

import msdu
from msdu import _context

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # leaves CUDA alone in this process
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
try:
    _context.Context({"backend": "nccl", "ranks": 2, "rank": 0}).destroy()
except msdu.Error as problem:
    pytest.skip(f"no module nccl: {problem}", allow_module_level=True)


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PLACE", "cuda")


def test_two_ranks_equal_ddp_to_the_bit() -> None:
    test_parity.test_two_ranks_equal_ddp_to_the_bit()


@pytest.mark.parametrize(("has_no_sync", "wanted"), [(True, 6), (False, 18)])
def test_accumulated_gradients_equal_ddp(has_no_sync: bool, wanted: int) -> None:
    test_parity.test_accumulated_gradients_equal_ddp(has_no_sync, wanted)


def test_clipping_sees_the_mean_gradient() -> None:
    test_parity.test_clipping_and_schedules_see_the_mean_gradient()


def test_an_infinity_skips_the_step_on_all_ranks() -> None:
    test_features.test_an_infinity_skips_the_step_on_all_ranks_as_with_ddp()


def test_a_fixed_interval_equals_averaging_by_torch() -> None:
    test_parity.test_a_fixed_interval_equals_post_local_sgd("adam")


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 3}], ids=["h1", "h3"])
def test_buffers_are_averaged_with_the_parameters(settings: dict[str, Any]) -> None:
    test_features.test_buffers_are_averaged_with_the_parameters(settings)


@pytest.mark.parametrize("name", ["gradient-int4", "delayed", "auto"])
def test_a_resumed_run_is_the_same_to_the_bit(name: str) -> None:
    test_state.test_a_resumed_run_is_the_same_to_the_bit(name, 7)


def test_synchronize_makes_ranks_equal() -> None:
    test_state.test_synchronize_makes_ranks_equal_and_training_goes_on()


def test_uneven_batches_are_means_over_who_has_one() -> None:
    test_state.test_uneven_batches_are_means_over_who_has_one("adam")
