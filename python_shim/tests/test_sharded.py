# SPDX-License-Identifier: Apache-2.0
"""Models that torch shards inside each replica (FSDP2), synchronized over the replicas: the same as
torch's own HSDP, or as averaging by torch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import nets
import pytest
import ranks
import sharded
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from sharded import STEPS
from test_parity import LOCAL, PLAIN
from torch import nn

import msdu

CASES = [("sgd", 1), ("adamw", 1), ("sgd", 4), ("adamw", 4)]


def against_torch(
    mesh: Any, name: str, interval: int, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """This rank's parts by us and by torch, and our counters."""
    theirs = sharded.train_by_torch(mesh, name, interval, dtype, **options)
    replica = dist.get_rank() // 2  # which start differently: attach makes them equal
    ours = sharded.shard(sharded.net(dtype, seed=1 + replica), mesh["shard"], **options)
    optimizer = OPTIMIZERS[name](ours.parameters())
    group: Any = {"process_group": mesh.get_group("replicate")}
    where = group if name == "sgd" else {"mesh": mesh["replicate"]}
    settings = PLAIN if interval == 1 else {**LOCAL, "interval_steps": interval}
    with msdu.attach(ours, optimizer, **where, **settings) as run:
        assert (run.rank, run.ranks) == (replica, 2)
        nets.train(ours, optimizer, STEPS, dist.get_rank(), dtype)
        run.finish()
        counted = run.summary()
    assert sharded.are_equal(sharded.parts(ours), mesh.get_group("replicate"))
    return sharded.parts(ours), sharded.parts(theirs), counted


def all_cases() -> dict[Any, tuple[torch.Tensor, torch.Tensor, Any]]:
    mesh = sharded.mesh_of()
    return {case: against_torch(mesh, *case) for case in CASES}


def test_every_step_equals_hsdp_and_local_ones_averages_by_torch() -> None:
    for found in ranks.run(all_cases, ranks=4, seconds=300):
        for (_, interval), (ours, theirs, counted) in found.items():
            if interval == 1:  # two summands a time: there is one way to round
                assert torch.equal(ours, theirs)
                assert counted.rounds == len(STEPS) and counted.domain == "gradient"
            else:
                nets.close_to(ours, theirs, 1e-6)
                assert counted.rounds == 5 and counted.domain == "parameter"


# --- what happens around a step ---


def both(
    mesh: Any, make: Any, loop: Any, name: str = "sgd", **settings: Any
) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
    """A model's training by HSDP and by us: parts, and what the loop returns."""
    theirs = make(mesh)
    wanted = loop(theirs, OPTIMIZERS[name](theirs.parameters()), None)
    ours = make(mesh["shard"])
    optimizer = OPTIMIZERS[name](ours.parameters())
    with msdu.attach(ours, optimizer, mesh=mesh["replicate"], **{**PLAIN, **settings}) as run:
        got = loop(ours, optimizer, run)
    return sharded.parts(ours), sharded.parts(theirs), got, wanted


def by_layer(mesh: Any, **options: Any) -> Any:
    return sharded.shard(sharded.net(), mesh, **options)


def clip(model: Any, optimizer: Any, run: Any) -> list[float]:
    return sharded.clipped(model, optimizer, range(6))


def accumulate(model: Any, optimizer: Any, run: Any) -> int:
    """Micro-batches that torch keeps from its own reduction, too."""
    for step in range(4):
        optimizer.zero_grad()
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)
            nets.loss_of(model, *nets.batch(dist.get_rank(), 3 * step + part)).backward()
        optimizer.step()
    return 4 if run is None else run.summary().steps


def keep(model: Any, optimizer: Any, run: Any) -> None:
    """Micro-batches that are kept from the exchange between replicas only."""
    for step in range(4):
        optimizer.zero_grad()
        for part in range(3):
            if run is None:
                model.set_requires_all_reduce(part == 2)
            with run.no_sync() if run is not None and part < 2 else nullcontext():
                nets.loss_of(model, *nets.batch(dist.get_rank(), 3 * step + part)).backward()
        optimizer.step()


def evaluate(model: Any, optimizer: Any, run: Any) -> None:
    """After a forward pass without gradients torch shows whole parameters until the next one."""
    for step in range(4):
        nets.train(model, optimizer, range(step, step + 1), dist.get_rank())
        with torch.no_grad():
            model(nets.batch(0, step)[0])
        if run is not None:
            run.synchronize()


def plainly(model: Any, optimizer: Any, run: Any) -> int:
    nets.train(model, optimizer, range(5), dist.get_rank())
    return 5 if run is None else run.summary().steps


def by_root(mesh: Any) -> Any:
    """One group, reduced in the last callback of the backward pass."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(sharded.net(), mesh=mesh)


class Two(nn.Module):
    """Two models of fully_shard, neither of which is the other's root."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.fsdp import fully_shard

        net = sharded.net()
        self.first = fully_shard(net[:3], mesh=mesh)
        self.second = fully_shard(net[3:], mesh=mesh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Again(nn.Module):
    """A layer that runs twice in a forward pass."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(4)
        self.layer = fully_shard(nn.Linear(nets.FEATURES, nets.FEATURES), mesh=mesh)
        self.last = fully_shard(nn.Linear(nets.FEATURES, nets.CLASSES), mesh=mesh)
        fully_shard(self, mesh=mesh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layer(torch.tanh(self.layer(x))))  # type: ignore[no-any-return]


def after_a_forward(mesh: Any) -> Any:
    """Attached while torch shows whole parameters."""
    model = by_layer(mesh)
    with torch.no_grad():
        model(nets.batch(0, 0)[0])
    return model


def mixed(mesh: Any) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return by_layer(mesh, mp_policy=policy)


def kept_whole(mesh: Any) -> Any:
    return by_layer(mesh, reshard_after_forward=False)


def partly_frozen(mesh: Any) -> Any:
    net = sharded.net()
    for param in net[2].parameters():
        param.requires_grad_(False)
    return sharded.shard(net, mesh)


AROUND: dict[str, tuple[Any, Any]] = {
    "clip": (by_layer, clip),
    "accumulate": (by_layer, accumulate),
    "keep": (by_layer, keep),
    "again": (Again, plainly),
    "evaluate": (by_layer, evaluate),
    "root": (by_root, plainly),
    "two": (Two, plainly),
    "after a forward": (after_a_forward, plainly),
    "mixed": (mixed, plainly),
    "kept whole": (kept_whole, plainly),
    "frozen": (partly_frozen, plainly),
}


def around() -> dict[str, Any]:
    mesh = sharded.mesh_of()
    return {name: both(mesh, *case) for name, case in AROUND.items()}


def test_what_happens_around_a_step_equals_hsdp() -> None:
    for found in ranks.run(around, ranks=4, seconds=300):
        for name, (ours, theirs, got, wanted) in found.items():
            assert torch.equal(ours, theirs), name
            assert got == wanted, name


# --- parameters that not all replicas use, buffers, ranks without any element ---


class Branches(nn.Module):
    """Every replica takes another branch; one is never taken."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.branches = nn.ModuleList(nn.Linear(nets.FEATURES, nets.CLASSES) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches[dist.get_rank() // 2](x)  # type: ignore[no-any-return]


def unused() -> tuple[list[torch.Tensor], list[bool]]:
    """Parts of the branches, and of a reference without torch's sharding."""
    mesh = sharded.mesh_of()
    from torch.distributed.fsdp import fully_shard

    theirs, ours = Branches(), Branches()
    for branch in ours.branches:
        fully_shard(branch, mesh=mesh["shard"])
    optimizer = OPTIMIZERS["sgd"](ours.parameters())
    plain = OPTIMIZERS["sgd"](theirs.parameters())
    with msdu.attach(ours, optimizer, mesh=mesh["replicate"], **PLAIN):
        for step in range(4):
            nets.train(ours, optimizer, range(step, step + 1), dist.get_rank())
            plain.zero_grad()
            nets.loss_of(theirs, *nets.batch(dist.get_rank(), step)).backward()
            for branch in theirs.branches[:2]:
                for p in branch.parameters():
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                    dist.all_reduce(p.grad)
                    p.grad /= 4
            plain.step()
    kept = [p.grad is None for p in ours.branches[2].parameters()]
    whole = [p.full_tensor().detach() for p in ours.parameters()]  # type: ignore[attr-defined]
    wanted = [p.detach() for p in theirs.parameters()]
    return [a - b for a, b in zip(whole, wanted)], kept


def test_replicas_that_use_other_parameters() -> None:
    for differences, kept in ranks.run(unused, ranks=4):
        assert max(float(one.abs().max()) for one in differences) < 1e-6
        assert all(kept)  # no replica used it


def buffers() -> tuple[torch.Tensor, torch.Tensor, bool]:
    """BatchNorm's statistics: each shard's own, averaged over the replicas."""
    mesh = sharded.mesh_of()
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nets.convnet(seed=1 + dist.get_rank() // 2), mesh=mesh["shard"])
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, mesh=mesh["replicate"], **LOCAL, interval_steps=2) as run:
        for step in range(5):
            optimizer.zero_grad()
            nets.loss_of(model, *nets.image_batch(dist.get_rank(), step)).backward()
            optimizer.step()
        before = sharded.gathered(model[1].running_mean.clone(), mesh.get_group("replicate"))
        run.finish()
    mean = torch.stack(before).mean(0)
    group = mesh.get_group("replicate")
    return mean, model[1].running_mean, sharded.are_equal(model[1].running_mean, group)


def test_buffers_are_averaged_over_the_replicas() -> None:
    found = ranks.run(buffers, ranks=4)
    for mean, now, is_equal in found:
        assert is_equal
        nets.close_to(now, mean, 1e-6)
    assert not torch.equal(found[0][1], found[1][1])  # another shard, which saw other batches


def row() -> tuple[float, int, int, int]:
    """A model of which the second shard has nothing."""
    mesh = sharded.mesh_of()
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1 + dist.get_rank() // 2)
    model = fully_shard(nn.Linear(3, 1), mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with msdu.attach(model, optimizer, mesh=mesh["replicate"], **LOCAL, interval_steps=2) as run:
        for step in range(5):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(1 + dist.get_rank()))).square().mean().backward()
            optimizer.step()
        run.finish()
        counted = run.summary()
    held = sharded.parts(model).numel()
    return float(model.weight.full_tensor().detach().sum()), held, counted.steps, counted.rounds


def test_a_rank_without_any_element_takes_part() -> None:
    found = ranks.run(row, ranks=4)
    assert len({total for total, *_ in found}) == 1
    assert [held for _, held, *_ in found] == [4, 0, 4, 0]
    assert all(steps == 5 and rounds >= 3 for *_, steps, rounds in found)
