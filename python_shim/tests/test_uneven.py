# SPDX-License-Identifier: Apache-2.0
"""Rounds by the clock: ranks of different speeds, over real processes."""

from __future__ import annotations

import time
from typing import Any

import nets
import ranks
import torch

import msdu


def trainer(seconds: float, wire: str) -> dict[str, Any]:
    """Every rank trains for the same time; the last one is four times slower."""
    rank, size = ranks.join_torch()
    model = nets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = msdu.attach(model, optimizer, uneven="clock", wire=wire)
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end or steps < 3:
        optimizer.zero_grad()
        nets.loss_of(model, *nets.batch(rank, steps)).backward()
        time.sleep(0.04 if rank == size - 1 else 0.01)
        optimizer.step()
        steps += 1
    run.synchronize()
    result = {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "summary": str(run.summary()),
        "missed": run.summary().missed,
        "steps": steps,
    }
    run.finish()
    return result


def test_a_slow_rank_comes_in_later_rounds() -> None:
    results = ranks.run(trainer, 3.0, "int8", ranks=3)
    for result in results[1:]:
        assert all(map(torch.equal, result["parameters"], results[0]["parameters"]))
    assert results[2]["missed"] > 0
    assert f"({results[2]['missed']} missed)" in results[2]["summary"]
    assert results[2]["steps"] < results[0]["steps"]  # nobody waited for it
