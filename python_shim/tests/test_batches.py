# SPDX-License-Identifier: Apache-2.0
"""Batches that follow the speed of the ranks: each sample once an epoch, and the training of one
process with the union of the batches."""

from __future__ import annotations

import time
from typing import Any, Optional

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import msdu

N = 203  # no multiple of what a step takes


class Rows(Dataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Samples that know their index."""

    def __init__(self) -> None:
        self.x, self.y = nets.batch(0, 7, dtype=torch.float64, count=N)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return i, self.x[i], self.y[i]


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = nets.mlp(torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step_with(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimizer.zero_grad()
    nets.loss_of(model, x, y).backward()
    optimizer.step()


def trainer(epochs: int, workers: int, slow: Optional[float], batch: int) -> dict[str, Any]:
    """The last rank needs `slow` seconds for a sample, the others a quarter of that.

    Then more epochs come until its pieces are smaller: other work on the machine evens ranks out.
    """
    rank, size = ranks.join_torch()
    model, optimizer = made()
    sampler = msdu.batches(N, batch, seed=3, ahead=8)
    loader = DataLoader(Rows(), batch_sampler=sampler, num_workers=workers)
    run = msdu.attach(model, optimizer, interval="fixed", interval_steps=1, wire="float32")
    drawn = []
    epoch, is_over = 0, False
    while not is_over:
        sampler.set_epoch(epoch)
        for i, x, y in loader:
            step_with(model, optimizer, x, y)
            drawn.append((epoch, i.tolist()))
            if slow is not None:
                time.sleep(len(i) * slow / (1 if rank == size - 1 else 4))
        largest = torch.tensor(max(len(piece) for at, piece in drawn if at == epoch))
        dist.broadcast(largest, size - 1)
        epoch += 1
        is_over = epoch >= epochs and (slow is None or int(largest) < batch or epoch == 40)
    run.finish()
    return {"drawn": drawn, "parameters": nets.flat(model), "length": len(sampler)}


def union(results: list[Any], step: int) -> list[int]:
    """Samples of a step, over all ranks."""
    return [i for result in results for i in result["drawn"][step][1]]


def check(results: list[Any], epochs: int) -> None:
    steps = [len(result["drawn"]) for result in results]
    assert steps == [epochs * results[0]["length"]] * len(results)
    for epoch in range(epochs):
        seen = [i for r in results for e, piece in r["drawn"] if e == epoch for i in piece]
        assert sorted(seen) == list(range(N))
    for result in results[1:]:
        assert torch.equal(result["parameters"], results[0]["parameters"])
    model, optimizer = made()
    data = Rows()
    for step in range(steps[0]):
        chosen = union(results, step)
        step_with(model, optimizer, data.x[chosen], data.y[chosen])
    torch.testing.assert_close(nets.flat(model), results[0]["parameters"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_rank_takes_less_and_training_is_that_of_one_process(workers: int) -> None:
    results = ranks.run(trainer, 5, workers, 0.004, 8, ranks=3, seconds=200.0)
    epochs = results[0]["drawn"][-1][0] + 1
    check(results, epochs)
    last = [len(piece) for epoch, piece in results[2]["drawn"] if epoch == epochs - 1]
    assert max(last) < 8  # on its way to a quarter


def even_trainer(uses_sampler: bool) -> list[torch.Tensor]:
    rank, size = ranks.join_torch()
    model, optimizer = made()
    run = msdu.attach(model, optimizer, interval="fixed", interval_steps=1, wire="float32")
    sampler: Any = msdu.batches(N, 8, seed=3, drop_last=True, ahead=64)
    if not uses_sampler:
        order = torch.randperm(N, generator=torch.Generator().manual_seed(3)).tolist()
        begins = range(8 * rank, N - N % (8 * size), 8 * size)
        sampler = [order[begin : begin + 8] for begin in begins]
    rows = []
    for _, x, y in [batch for _ in range(4) for batch in DataLoader(Rows(), batch_sampler=sampler)]:
        step_with(model, optimizer, x, y)
        rows.append(nets.flat(model))
    run.finish()
    return rows


def test_even_shares_have_the_bits_of_fixed_batches() -> None:
    """Nothing is decided so early that it would count with ahead=64."""
    with_it = ranks.run(even_trainer, True, ranks=2)
    without = ranks.run(even_trainer, False, ranks=2)
    assert len(with_it[0]) == 4 * (N // 16)
    for rank in range(2):
        assert all(map(torch.equal, with_it[rank], without[rank]))


def resuming_trainer(stop: int, workers: int) -> list[list[int]]:
    """Stops in the middle of an epoch, and goes on in a new run of the same processes."""
    ranks.join_torch()
    drawn: list[list[int]] = []
    state: Optional[dict[str, Any]] = None
    for part in range(2):
        model, optimizer = made()
        sampler = msdu.batches(N, 8, ahead=12)
        with msdu.attach(model, optimizer, interval="fixed", interval_steps=1) as run:
            if state is not None:
                sampler.load_state_dict(state["sampler"])
                run.load_state_dict(state["run"])
            sampler.set_epoch(0)
            for i, x, y in DataLoader(Rows(), batch_sampler=sampler, num_workers=workers):
                step_with(model, optimizer, x, y)
                drawn.append(i.tolist())
                if len(drawn) == stop and part == 0:
                    state = {"run": run.state_dict(), "sampler": sampler.state_dict()}
                    break
    assert state is not None and state["sampler"]["position"] == 16 * stop
    return drawn


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_in_the_middle_of_an_epoch(workers: int) -> None:
    results = ranks.run(resuming_trainer, 5, workers, ranks=2)
    seen = [i for drawn in results for piece in drawn for i in piece]
    assert sorted(seen) == list(range(N))


def broken_off_trainer() -> list[list[int]]:
    """Epochs that are broken off leave nothing behind."""
    ranks.join_torch()
    model, optimizer = made()
    sampler = msdu.batches(N, 8)
    loader = DataLoader(Rows(), batch_sampler=sampler, num_workers=2)
    with msdu.attach(model, optimizer, interval="fixed", interval_steps=1):
        for epoch in range(3):
            drawn = []
            for i, x, y in loader:
                if epoch < 2 and len(drawn) == 3:
                    break
                step_with(model, optimizer, x, y)
                drawn.append(i.tolist())
    return drawn


def test_an_epoch_that_was_broken_off_is_followed_by_a_whole_one() -> None:
    results = ranks.run(broken_off_trainer, ranks=2)
    assert sorted(i for drawn in results for piece in drawn for i in piece) == list(range(N))


def few_trainer() -> dict[str, Any]:
    """Three samples left for four ranks: one rank gets a sample that counts nothing."""
    ranks.join_torch()
    model, optimizer = made()
    data = Rows()
    sampler = msdu.batches(11, 2, shuffle=False)
    run = msdu.attach(model, optimizer, interval="fixed", interval_steps=1, wire="float32")
    sizes = []
    for piece in sampler:
        step_with(model, optimizer, data.x[piece], data.y[piece])
        sizes.append(len(piece))
    run.finish()
    return {"sizes": sizes, "parameters": nets.flat(model)}


def test_fewer_samples_than_ranks() -> None:
    results = ranks.run(few_trainer, ranks=4)
    assert [result["sizes"] for result in results] == [[2, 1]] * 4
    model, optimizer = made()
    data = Rows()
    for begin, end in ((0, 8), (8, 11)):
        step_with(model, optimizer, data.x[begin:end], data.y[begin:end])
    for result in results:
        torch.testing.assert_close(nets.flat(model), result["parameters"], rtol=1e-9, atol=1e-11)


def alone_trainer() -> list[list[int]]:
    model, optimizer = made()
    data = Rows()
    sampler = msdu.batches(N, 8, ahead=0)
    drawn = []
    with msdu.attach(model, optimizer):
        for piece in sampler:
            step_with(model, optimizer, data.x[piece], data.y[piece])
            drawn.append(piece)
            if len(drawn) == 9:
                assert sampler.state_dict()["position"] == 72
    return drawn


def test_one_rank_takes_all() -> None:
    drawn = ranks.run(alone_trainer, ranks=1)[0]
    assert sorted(i for piece in drawn for i in piece) == list(range(N))
    assert {len(piece) for piece in drawn[:-1]} == {8}


def refusing_trainer() -> None:
    ranks.join_torch()
    model, optimizer = made()
    with msdu.attach(model, optimizer):
        pieces = iter(msdu.batches(N, 8, ahead=2))
        for _ in range(3):
            next(pieces)
        with pytest.raises(msdu.Error, match="a step takes one piece"):
            next(pieces)
        with pytest.raises(msdu.Error, match="fill no step of 2 ranks with 8 each"):
            next(iter(msdu.batches(9, 8, drop_last=True)))
        with pytest.raises(msdu.Error, match="batches: seed is 1; the state has 2"):
            msdu.batches(N, 8, seed=1).load_state_dict(msdu.batches(N, 8, seed=2).state_dict())
    with pytest.raises(msdu.Error, match=r"attach\(\) comes first"):
        next(iter(msdu.batches(N, 8)))


def test_what_cannot_work_is_refused() -> None:
    ranks.run(refusing_trainer, ranks=2)
    for n, batch in ((0, 8), (N, 0), (True, 8), (N, 8.0)):
        with pytest.raises(msdu.Error, match="is not an integer >= 1"):
            msdu.batches(n, batch)  # type: ignore[arg-type]
