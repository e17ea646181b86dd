# SPDX-License-Identifier: Apache-2.0
"""msdu.pipeline() against one process that accumulates the same micro-batches, to the bit."""

from __future__ import annotations

from typing import Any

import pipelines
import pytest
import ranks

MICRO_BATCHES = 4
STEPS = range(4)


def train(model: str, optimizer: str, plans: list[bytes], options: dict[str, Any]) -> Any:
    rank, _ = ranks.join_torch()
    found = []
    for plan in plans:
        pipe = pipelines.make(model, optimizer, MICRO_BATCHES, plan=plan, **options)
        losses = [pipe.step(*pipelines.batch(model, step, MICRO_BATCHES)) for step in STEPS]
        found.append((losses, pipelines.values(pipe)))
    return found


@pytest.mark.parametrize(
    ("model", "optimizer"), [("mlp", "sgd"), ("transformer", "adamw")]
)
def test_any_cut_and_placement_has_the_bits_of_one_process(model: str, optimizer: str) -> None:
    plans = [pipelines.plan(seed, 6, 3, MICRO_BATCHES) for seed in range(8)]
    net, wanted = pipelines.alone(model, optimizer, STEPS, MICRO_BATCHES)
    by_rank = ranks.run(train, model, optimizer, plans, {}, ranks=3)
    for found in zip(*by_rank):
        assert [losses for losses, _ in found] == [wanted] * 3
        pipelines.same([values for _, values in found], net)


def planned(boundary: str) -> Any:
    rank, _ = ranks.join_torch()
    pipe = pipelines.make("transformer", "adamw", MICRO_BATCHES, boundary=boundary)
    losses = [pipe.step(*pipelines.batch("transformer", step, MICRO_BATCHES)) for step in STEPS]
    pipe.finish()
    return losses, pipelines.values(pipe), pipe.plan.dumps(), str(pipe.summary()), pipe.progress()


def test_it_plans_by_itself() -> None:
    net, wanted = pipelines.alone("transformer", "adamw", STEPS, MICRO_BATCHES)
    found = ranks.run(planned, "float32")
    assert [one[0] for one in found] == [wanted] * 2
    pipelines.same([one[1] for one in found], net)
    assert found[0][2] == found[1][2]
    assert "planned" in found[0][3] and "4 steps of 4 micro-batches" in found[0][3]
    assert found[0][4]["moves"] == "0"
    print(found[0][3])


REPLICATED = pipelines.plan(3, 6, 2, MICRO_BATCHES)


def replicated(clip: float, settings: dict[str, Any]) -> Any:
    rank, _ = ranks.join_torch()
    pipe = pipelines.make("transformer", "adamw", MICRO_BATCHES, replicas=2, plan=REPLICATED, **settings)
    losses = []
    for step in STEPS:
        x, y = pipelines.batch("transformer", step, MICRO_BATCHES, rank // 2)
        losses.append(pipe.backward(x, y))
        if clip:
            pipe.clip_grad_norm_(clip)
        pipe.update()
    pipe.finish()
    return losses, pipelines.values(pipe)


EXACT = {"interval": "fixed", "interval_steps": 1, "wire": "float32"}


@pytest.mark.parametrize("clip", [0, 0.5])
def test_two_replicas_of_two_stages_have_the_bits_of_one_process(clip: float) -> None:
    net, wanted = pipelines.alone("transformer", "adamw", STEPS, MICRO_BATCHES, 2, clip)
    found = ranks.run(replicated, clip, EXACT, ranks=4)
    for replica in range(2):
        assert [one[0] for one in found[2 * replica :][:2]] == [wanted[replica::2]] * 2
        pipelines.same([one[1] for one in found[2 * replica :][:2]], net)
