# SPDX-License-Identifier: Apache-2.0
"""Rounds by the clock: ranks of different speeds, over real processes."""

from __future__ import annotations

import os
import time
from typing import Any

import nets
import pytest
import ranks
import torch
import torch.distributed as dist

import msdu

STEPS = 20  # of the slow rank


class Pace:
    """The last rank's step ends when rank 0 has taken four more: no clock tells who is slow."""

    def __init__(self, rank: int, size: int) -> None:
        port = int(os.environ["MASTER_PORT"])
        self._store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
        self._rank, self.is_slow = rank, rank == size - 1

    def step(self) -> None:
        """Of this rank."""
        if self.is_slow:
            end = self._store.add("steps", 0) + 4
            while self._store.add("steps", 0) < end:
                time.sleep(0.005)
        else:
            time.sleep(0.01)
            self._store.add("steps", int(self._rank == 0))

    def is_over(self, is_last: bool) -> bool:
        """The slow rank says when; all others go on until then."""
        return self._store.add("over", int(self.is_slow and is_last)) > 0


def trainer(wire: str) -> dict[str, Any]:
    """All train until the slow rank has missed rounds."""
    rank, size = ranks.join_torch()
    model = nets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = msdu.attach(model, optimizer, uneven="clock", wire=wire)
    pace = Pace(rank, size)
    steps = 0
    while not pace.is_over(steps >= STEPS and run.summary().missed > 0):
        optimizer.zero_grad()
        nets.loss_of(model, *nets.batch(rank, steps)).backward()
        pace.step()
        optimizer.step()
        steps += 1
    with pytest.raises(msdu.Error, match=r"call msdu_synchronize\(\) before, on all ranks"):
        run.state_dict()
    run.synchronize()
    saved = run.state_dict(), model.state_dict(), optimizer.state_dict()
    result = {
        "parameters": [p.detach().clone() for p in model.parameters()],
        "summary": str(run.summary()),
        "missed": run.summary().missed,
        "steps": steps,
    }
    run.finish()
    run.close()
    result["resumed"] = resumed(rank, wire, saved)
    return result


def resumed(rank: int, wire: str, saved: tuple[Any, ...]) -> list[torch.Tensor]:
    """A job that goes on where trainer() saved."""
    model = nets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = msdu.attach(model, optimizer, uneven="clock", wire=wire)
    model.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    run.load_state_dict(saved[0])
    before = run.summary().steps
    for step in range(3 + rank):
        optimizer.zero_grad()
        nets.loss_of(model, *nets.batch(rank, step)).backward()
        optimizer.step()
    run.join()
    assert run.summary().steps == before + 3 + rank
    run.finish()
    run.close()
    return [p.detach().clone() for p in model.parameters()]


def climber() -> dict[str, Any]:
    """Exact until the slow rank is waited for too long, then by the clock; BatchNorm has buffers."""
    rank, size = ranks.join_torch()
    torch.manual_seed(1)
    norm = torch.nn.BatchNorm1d(16)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), norm, torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = msdu.attach(model, optimizer, uneven="auto")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    generator = torch.Generator().manual_seed(rank)
    pace = Pace(rank, size)
    entered = steps = 0
    while not pace.is_over(entered > 0 and steps >= entered + STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        if entered > 0:
            pace.step()
        else:  # all take the same steps, so only time can tell who is slow
            time.sleep(0.06 if pace.is_slow else 0.01)
        optimizer.step()
        scheduler.step()
        steps += 1
        if run.summary().state == "clock" and entered == 0:
            entered = steps
    run.synchronize()
    summary = run.summary()
    result = {
        "parameters": [p.detach().clone() for p in model.parameters()]
        + [norm.running_mean.clone(), norm.running_var.clone()],
        "entered": entered,
        "steps": steps,
        "common": summary.common_steps,
        "waited": summary.straggler_ns,
        "scheduled": scheduler.last_epoch,
    }
    run.finish()
    return result


def drawer(workers: int) -> dict[str, Any]:
    """Two epochs of drawn work by the clock; the last rank is five times slower."""
    rank, size = ranks.join_torch()
    model = nets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    run = msdu.attach(model, optimizer, uneven="clock", wire="float32")
    sampler = msdu.batches(301, 2, seed=3, ahead=4 * workers)
    loader = torch.utils.data.DataLoader(
        list(range(301)), batch_sampler=sampler, num_workers=workers
    )
    epochs: list[list[int]] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([])
        for indices in loader:
            epochs[-1] += indices.tolist()
            optimizer.zero_grad()
            nets.loss_of(model, *nets.batch(rank, len(epochs[-1]))).backward()
            time.sleep(0.025 if rank == size - 1 else 0.005)
            optimizer.step()
    try:
        sampler.state_dict()
        refused = ""
    except msdu.Error as error:
        refused = str(error)
    run.finish()
    parameters = [p.detach().clone() for p in model.parameters()]
    return {"epochs": epochs, "refused": refused, "parameters": parameters}


@pytest.mark.parametrize("workers", [0, 1])
def test_drawn_work_has_one_rank_by_the_clock(workers: int) -> None:
    results = ranks.run(drawer, workers, ranks=3)
    for epoch in range(2):
        drawn = [index for result in results for index in result["epochs"][epoch]]
        assert sorted(drawn) == list(range(301))
    fast, slow = (sum(map(len, results[rank]["epochs"])) for rank in (0, 2))
    assert slow < fast
    for result in results:
        assert "by the clock" in result["refused"]
        assert all(map(torch.equal, result["parameters"], results[0]["parameters"]))


def test_exact_until_a_slow_rank_is_waited_for() -> None:
    results = ranks.run(climber, ranks=3)
    for result in results:
        same = map(torch.equal, result["parameters"], results[0]["parameters"])
        assert all(same)
        assert result["entered"] == results[0]["entered"] > 12
        assert result["waited"] > 0
    # schedules do not part: within what ranks do from one step of the slow one to the next
    scheduled = [result["scheduled"] for result in results]
    assert max(scheduled) - min(scheduled) < 20 < results[0]["steps"] - results[2]["steps"]
    # of the average rank
    fast = max(results[0]["steps"], results[1]["steps"])
    assert results[2]["steps"] < results[2]["common"] <= fast


def test_a_slow_rank_comes_in_later_rounds() -> None:
    results = ranks.run(trainer, "int8", ranks=3)
    for result in results[1:]:
        assert all(map(torch.equal, result["parameters"], results[0]["parameters"]))
        assert all(map(torch.equal, result["resumed"], results[0]["resumed"]))
    assert results[2]["missed"] > 0
    assert f"({results[2]['missed']} missed)" in results[2]["summary"]
    assert results[2]["steps"] < results[0]["steps"]  # nobody waited for it
