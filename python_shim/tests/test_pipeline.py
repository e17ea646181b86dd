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
