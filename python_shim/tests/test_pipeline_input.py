# SPDX-License-Identifier: Apache-2.0
"""Pipelines that cannot be: each is an error that names the layer, the rank or the action."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Callable

import pipelines
import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import msdu
from msdu import _stages_engine, _stages_plan, _stages_ranks


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    """Most of this can be seen on one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def make(layers: Any, micro_batches: int = 2, **options: Any) -> msdu.Pipeline:
    example = (torch.ones(3, 4), torch.ones(3, 4))
    return msdu.pipeline(
        layers, nn.functional.mse_loss, sgd, example, micro_batches, deadline=20, **options
    )


def refused(match: str, layers: Any, **options: Any) -> msdu.Error:
    with pytest.raises(msdu.Error, match=match) as caught:
        make(layers, **options)
    return caught.value


def linear() -> nn.Module:
    return nn.Linear(4, 4)


class Skips(nn.Module):
    """Wants what an earlier layer gave."""

    def forward(self, x: torch.Tensor, early: torch.Tensor) -> torch.Tensor:
        return x + early


class Changes(nn.Module):
    """Gives another shape after some batches."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x if self.calls < 4 else x[:, :3]


class Fails(nn.Module):
    """Raises after some batches."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 8:
            raise ValueError("no more")
        return x


def test_tied_weights() -> None:
    shared = linear()
    refused("layer 2 shares its parameter 'weight' with layer 0", [shared, nn.Tanh(), shared])
    refused(
        "layer 1 shares its parameter '0.weight'", [lambda: shared, lambda: nn.Sequential(shared)]
    )


def test_a_chain_that_does_not_fit() -> None:
    refused(
        r"layer 1 \(Linear\) does not take what layer 0 gives, \[3, 4\]",
        [linear, lambda: nn.Linear(5, 4)],
    )
    refused(r"layer 2 \(Skips\) does not take what layer 1 gives.*early", [linear, nn.Tanh, Skips])
    refused("the loss does not take what the last layer gives", [linear, lambda: nn.Linear(4, 3)])
    refused("layer 1 is a list, not a torch", [linear, list])
    refused("layer 1 is a int, no module", [linear, 3])
    refused("there is no layer", [])


def test_batches_that_do_not_fit() -> None:
    pipe = make([linear, nn.Tanh])
    for count, match in ((7, "x has 7 samples, not a multiple of 2"), (8, r"x is \[8, 4\], not 2")):
        with pytest.raises(msdu.Error, match=match):
            pipe.step(torch.randn(count, 4), torch.randn(count, 4))
    with pytest.raises(msdu.Error, match=r"y is \[6, 5\]"):
        pipe.step(torch.randn(6, 4), torch.randn(6, 5))


def test_probing_leaves_no_trace() -> None:
    """Neither in a module that was given, nor in random numbers; BatchNorm counts what it saw."""
    norm = nn.BatchNorm1d(4)
    torch.manual_seed(1)
    wanted = torch.rand(1)
    pipe = make(nn.Sequential(linear(), norm, nn.Dropout(0.5), linear()))
    torch.manual_seed(1)
    assert norm.num_batches_tracked == 0
    make([linear, nn.Tanh, lambda: nn.Dropout(0.5)])
    assert torch.equal(torch.rand(1), wanted)
    for _ in range(3):
        pipe.step(torch.randn(6, 4), torch.randn(6, 4))
    assert norm.num_batches_tracked == 6


def test_shapes_that_change() -> None:
    pipe = make([linear, Changes, linear])
    batch = (torch.randn(6, 4), torch.randn(6, 4))
    pipe.step(*batch)
    with pytest.raises(
        msdu.Error, match=r"layer 1 \(Changes\) gives \[3, 3\] float32, and gave \[3, 4\]"
    ):
        pipe.step(*batch)


def test_too_little_memory() -> None:
    problem = refused("0 .Linear", [linear, nn.Tanh], memory=10)
    assert problem.status == "MSDU_ERR_NOT_FOUND"


def test_options_that_cannot_be() -> None:
    refused("boundary: 'int8' is none of float32, bfloat16", [linear], boundary="int8")
    refused("replicas: 1 ranks cannot be 2", [linear], replicas=2)
    refused("micro_batches: 0", [linear], micro_batches=0)
    with pytest.raises(msdu.Error, match="unknown setting 'intervall'"):
        make([linear], intervall=3)


def _plan(cuts: Any = ((0, 0, 2),), order: str = "0F0,0F1,0B0,0B1", parts: int = 2) -> Any:
    return _stages_plan.by_hand(list(cuts), {0: order.split(",")}, parts)


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (_plan([(0, 0, 1)]), "its stages have 1 layers, the model 2"),
        (_plan([(0, 1, 2)]), "stage 0 has layers 1 to 1, after -1"),
        (_plan([(3, 0, 2)]), "stage 0 is on device 3 of 1"),
        (_plan(order="0F0,0F1,0B0"), "0B1 is missing"),
        (_plan(order="0B0,0F0,0F1,0B1"), "device 0 can never run 0B0"),
        (_plan(order="0F0,0F0,0B0,0B1"), "runs 0F0: there is no such one, or twice"),
        (_plan(order="0F0,0F1,0B0,0B1", parts=3), "0B2 is missing"),
        (_plan(order="0F0,0B0", parts=1), "the plan has 1 micro-batches, not 2"),
        ({"format": "other"}, "format 'other'"),
        ({"format": "msdu-stages-1"}, "it cannot be read"),
        (b"{", "it cannot be read"),
    ],
)
def test_plans_that_do_not_fit(plan: Any, match: str) -> None:
    refused(match, [linear, nn.Tanh], plan=plan)


def test_a_torch_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.distributed.pipelining.schedules._PipelineScheduleRuntime._load_csv")
    monkeypatch.setattr(
        "torch.distributed.pipelining.schedules.PipelineScheduleMulti._load_csv", None
    )
    problem = refused(r"needs torch.*this is 2\.", [linear])
    assert problem.status == "MSDU_ERR_UNSUPPORTED"


def test_the_names_of_torch_that_we_use() -> None:
    assert _stages_engine.runtime().__name__ == "_PipelineScheduleRuntime"
    assert not _stages_engine.store("msdu_test").check(["nothing"])


def test_targets_of_another_kind() -> None:
    """Two inputs, a tuple between layers, targets that are no floats."""
    x, y = pipelines.batch("mlp", 0, 2)

    class Both(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return a + b, b

    class Head(nn.Linear):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return super().forward(a * b)

    example = ((x[:3], x[:3]), y[:3])
    layers = [Both, lambda: Head(x.shape[1], 5)]
    order = _plan([(0, 0, 1), (0, 1, 2)], "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1")
    pipe = msdu.pipeline(layers, nn.functional.cross_entropy, sgd, example, 2, plan=order)
    assert pipe.step((x, x), y) > pipe.step((x, x), y) > 0


CUTS = [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
ORDER = {d: [f"{d}F0", f"{d}F1", f"{d}B0", f"{d}B1"] for d in range(3)}


def accident(
    what: str, layers: list[Callable[[], nn.Module]], device: int, deadline: float
) -> None:
    rank, _ = ranks.join_torch()
    _stages_ranks._GRACE_S = 1.0
    plan = _stages_plan.by_hand(CUTS, ORDER, 2)
    example = (torch.randn(3, 4), torch.randn(3, 4))
    pipe = msdu.pipeline(
        layers, nn.functional.mse_loss, sgd, example, 2, plan=plan, deadline=deadline
    )
    for step in range(5):
        if rank == device and step == 2 and what == "dies":
            os._exit(3)
        if rank == device and step == 2 and what == "sleeps":
            time.sleep(deadline + 2.5)
        pipe.step(torch.randn(6, 4), torch.randn(6, 4))
    if rank == device and what == "leaves":
        os._exit(3)
    pipe.finish()


@pytest.mark.parametrize(
    ("what", "device"), [("dies", 2), ("dies", 0), ("sleeps", 1), ("leaves", 1)]
)
def test_a_rank_that_is_gone(what: str, device: int) -> None:
    begin = time.monotonic()
    with pytest.raises(ranks.RankFailed) as caught:
        ranks.run(accident, what, [linear] * 3, device, 4.0, ranks=3, seconds=60)
    text = str(caught.value)
    assert text.count(f"pipeline: rank {device} (device {device} of the plan) is gone") == 2, text
    assert time.monotonic() - begin < 45


def test_a_rank_that_fails_says_why() -> None:
    with pytest.raises(ranks.RankFailed) as caught:
        ranks.run(accident, "", [linear, Fails, linear], 1, 20.0, ranks=3, seconds=60)
    assert str(caught.value).count("pipeline: rank 1 ended: ValueError: no more") == 2
