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


def climber(seconds: float) -> dict[str, Any]:
    """Exact until the slow rank is waited for too long, then by the clock; BatchNorm has buffers."""
    rank, size = ranks.join_torch()
    torch.manual_seed(1)
    norm = torch.nn.BatchNorm1d(16)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), norm, torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = msdu.attach(model, optimizer, uneven="auto")
    generator = torch.Generator().manual_seed(rank)
    entered, end = 0, time.monotonic() + 20 * seconds
    steps = 0
    while time.monotonic() < end:
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        time.sleep(0.06 if rank == size - 1 else 0.01)
        optimizer.step()
        steps += 1
        if run.summary().state == "clock" and entered == 0:
            entered, end = steps, time.monotonic() + seconds
    run.synchronize()
    summary = run.summary()
    result = {
        "parameters": [p.detach().clone() for p in model.parameters()]
        + [norm.running_mean.clone(), norm.running_var.clone()],
        "entered": entered,
        "steps": steps,
        "common": summary.common_steps,
        "waits": (summary.straggler_ns, summary.network_ns),
    }
    run.finish()
    return result


def test_exact_until_a_slow_rank_is_waited_for() -> None:
    results = ranks.run(climber, 3.0, ranks=3)
    for result in results:
        same = map(torch.equal, result["parameters"], results[0]["parameters"])
        assert all(same)
        assert result["entered"] == results[0]["entered"] > 12
        assert result["waits"][0] > result["waits"][1]
    # of the average rank
    fast = max(results[0]["steps"], results[1]["steps"])
    assert results[2]["steps"] < results[2]["common"] <= fast


def test_a_slow_rank_comes_in_later_rounds() -> None:
    results = ranks.run(trainer, 3.0, "int8", ranks=3)
    for result in results[1:]:
        assert all(map(torch.equal, result["parameters"], results[0]["parameters"]))
    assert results[2]["missed"] > 0
    assert f"({results[2]['missed']} missed)" in results[2]["summary"]
    assert results[2]["steps"] < results[0]["steps"]  # nobody waited for it
