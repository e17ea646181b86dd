# SPDX-License-Identifier: Apache-2.0
"""What ranks measured, as a question for the planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import torch

from ._stages_abi import Question
from ._stages_probe import Look
from ._stages_ranks import Ranks

Links = tuple[list[float], list[float]]  # rates and latencies to the other devices


def question(
    ranks: Ranks,
    looks: Sequence[tuple[Look, float]],
    links: Sequence[Links],
    micro_batches: int,
    boundary: Optional[torch.dtype],
    may: int,
) -> Question:
    """Replicas are cut alike: a device is as slow as the slowest of its column.

    Args:
        looks: by rank, at layers; and bytes that it has, 0 for no limit.
        links: by rank.
        boundary: type of floating point values between stages; None: their own.
        may: of msdu_stages_question.
    """
    columns = [[ranks.of(d, r) for r in range(ranks.replicas)] for d in range(ranks.devices)]
    first = looks[0][0]

    def slowest(of: Callable[[Look], list[float]]) -> list[list[float]]:
        return [list(map(max, zip(*(of(looks[r][0]) for r in column)))) for column in columns]

    crossing = [float(sum(f.cast(boundary).bytes for f in forms)) for forms in first.between[1:]]
    memory = [[looks[r][1] for r in column if looks[r][1]] for column in columns]
    return Question(
        micro_batches=micro_batches,
        forward_ns=slowest(lambda one: one.forward_ns),
        backward_ns=slowest(lambda one: one.backward_ns),
        output_bytes=[*crossing[:-1], 0.0],  # nobody takes what the last layer gives
        kept_bytes=first.kept_bytes,
        state_bytes=first.state_bytes,
        memory_bytes=[min(limits, default=0.0) for limits in memory],
        link_rate=[list(map(min, zip(*(links[r][0] for r in column)))) for column in columns],
        latency_ns=[list(map(max, zip(*(links[r][1] for r in column)))) for column in columns],
        names=first.names,
        may=may,
    )
