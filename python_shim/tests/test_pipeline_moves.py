# SPDX-License-Identifier: Apache-2.0
"""Layers that change hands between steps: the bits stay, noise moves nothing, a slow rank does."""

from __future__ import annotations

import math
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

import pipelines
import pytest
import ranks
import torch
from torch import nn

import msdu
from msdu import _stages_abi, _stages_adapt, _stages_probe, _stages_question, _stages_run
from msdu._stages_plan import Plan

MICRO_BATCHES = 4
STEPS = range(6)
EXACT = {"interval": "fixed", "interval_steps": 1, "wire": "float32"}


def moved(plans: list[bytes], replicas: int) -> Any:
    """Every second step by another plan."""
    rank, count = ranks.join_torch()
    pipe = pipelines.make(
        "transformer", "adamw", MICRO_BATCHES, plan=plans[0], replicas=replicas, **EXACT
    )
    losses = []
    for step in STEPS:
        if step and step % 2 == 0:
            pipe.move(plans[step // 2])
        replica = rank * replicas // count
        losses.append(pipe.step(*pipelines.batch("transformer", step, MICRO_BATCHES, replica)))
    pipe.finish()
    return losses, pipelines.values(pipe), pipe.summary().moves


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_bits_are_those_of_any_cut(replicas: int) -> None:
    plans = [pipelines.plan(seed, 6, 2, MICRO_BATCHES) for seed in (1, 2, 3)]
    net, wanted = pipelines.alone("transformer", "adamw", STEPS, MICRO_BATCHES, replicas)
    found = ranks.run(moved, plans, replicas, ranks=2 * replicas)
    for replica in range(replicas):
        own = found[2 * replica : 2 * replica + 2]
        assert [one[0] for one in own] == [wanted[replica::replicas]] * 2
        pipelines.same([one[1] for one in own], net)
    assert [one[2] for one in found] == [2] * len(found)


class Sleeps(nn.Linear):
    """Takes longer where and when it is told."""

    seconds = 0.002

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


def slowed() -> Any:
    rank, _ = ranks.join_torch()
    batch = (torch.randn(2, 4), torch.randn(2, 4))
    pipe = msdu.pipeline(
        [lambda: Sleeps(4, 4)] * 8,
        nn.functional.mse_loss,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        batch,
        2,
        adapt=4,
    )
    before = len(pipe.modules)
    for step in range(24):
        if step == 6 and rank == 1:
            Sleeps.seconds = 0.02
        pipe.step(*(torch.cat([one, one]) for one in batch))
    return before, len(pipe.modules), pipe.moves, str(pipe.summary())


def test_a_slow_rank_hands_layers_over() -> None:
    (before, after, moves, text), (_, left, _, _) = ranks.run(slowed)
    assert 3 <= before <= 5
    assert after >= 6 and left == 8 - after
    assert moves >= 1 and f"; {moves} move" in text


# --- the rule alone ---

SPEEDS = [1.0, 1.0, 2.0, 4.0]


def asked(speeds: list[float]) -> _stages_abi.Question:
    layers, devices = 12, len(speeds)
    return _stages_abi.Question(
        micro_batches=8,
        forward_ns=[[10e6 / speed] * layers for speed in speeds],
        backward_ns=[[20e6 / speed] * layers for speed in speeds],
        output_bytes=[5e5] * layers,
        kept_bytes=[1e6] * layers,
        state_bytes=[12e6] * layers,
        memory_bytes=[0.0] * devices,
        link_rate=[[1.25e7] * devices for _ in speeds],
        latency_ns=[[1e5] * devices for _ in speeds],
        names=[str(layer) for layer in range(layers)],
    )


def measured(plan: Plan, speeds: list[float], noise: float, draw: random.Random) -> list[float]:
    """Medians of 16 steps."""
    return [
        statistics.median(
            8 * 30e-3 * (s.end - s.first) / speeds[s.device] * draw.gauss(1, noise)
            for _ in range(16)
        )
        for s in plan.stages
    ]


def test_noise_moves_nothing() -> None:
    for seed in range(4):
        draw = random.Random(seed)
        plan = _stages_abi.plan(asked(SPEEDS))
        regret = _stages_adapt.Regret(asked(SPEEDS), plan, 1.0)
        for _ in range(500 // 16):
            assert regret.look(measured(plan, SPEEDS, 0.2, draw), 16) is None


def test_a_slow_device_is_as_good_as_known() -> None:
    """Within ten percent of the plan that knew, after a few looks."""
    slow = [1.0, 1.0, 2.0, 1.0]
    regret = _stages_adapt.Regret(asked(SPEEDS), _stages_abi.plan(asked(SPEEDS)), 1.0)
    for _ in range(8):
        found = regret.look(measured(regret.plan, slow, 0.02, random.Random(1)), 16)
        if found is not None:
            regret.moved(found, 1.0)
    known = _stages_abi.plan(asked(slow)).step_ns
    assert _stages_abi.time_ns(asked(slow), regret.plan) <= 1.1 * known


def test_what_moving_costs_is_waited_for() -> None:
    slow = [1.0, 1.0, 2.0, 1.0]
    regret = _stages_adapt.Regret(asked(SPEEDS), _stages_abi.plan(asked(SPEEDS)), 100.0)
    looks = 0
    while regret.look(measured(regret.plan, slow, 0.0, random.Random(1)), 16) is None:
        looks += 1
        assert looks < 50
    assert looks > 1 and regret.regret_s >= 100.0


def test_replicas_are_as_slow_as_the_slowest_of_a_column() -> None:
    ranks: Any = SimpleNamespace(
        replicas=2, devices=2, of=lambda device, replica: 2 * replica + device
    )
    form = (_stages_run.Form((3, 4), torch.float32), _stages_run.Form((3,), torch.int64))
    looks = [
        (
            _stages_probe.Look(
                between=[form] * 3,
                names=["0", "1"],
                kept_bytes=[1.0, 2.0],
                state_bytes=[3.0, 4.0],
                forward_ns=[10.0 + rank, 5.0],
                backward_ns=[7.0, 20.0 - rank],
            ),
            [0.0, 300.0, 100.0, 200.0][rank],
        )
        for rank in range(4)
    ]
    links = [([math.inf, 8.0 - rank], [0.0, 1.0 + rank]) for rank in range(4)]
    asked = _stages_question.question(ranks, looks, links, 4, torch.bfloat16, 1)
    assert asked.forward_ns == [[12.0, 5.0], [13.0, 5.0]]
    assert asked.backward_ns == [[7.0, 20.0], [7.0, 19.0]]
    assert asked.output_bytes == [3 * 4 * 2 + 3 * 8, 0.0]
    assert asked.memory_bytes == [100.0, 200.0]
    assert [row[1] for row in asked.link_rate] == [6.0, 5.0]
    assert [row[1] for row in asked.latency_ns] == [3.0, 4.0]
    assert (asked.micro_batches, asked.may) == (4, 1)
