# SPDX-License-Identifier: Apache-2.0
"""Sharded models: checkpoints, uneven replicas, chosen intervals, tensor parallelism, groups."""

from __future__ import annotations

import io
from typing import Any

import nets
import pytest
import ranks
import sharded
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from test_parity import LOCAL, PLAIN

import msdu


def load_parts(model: Any, values: dict[str, torch.Tensor]) -> None:
    """What a rank saved of its parts."""
    for name, p in model.named_parameters():
        with torch.no_grad():
            p.to_local().copy_(values[name])


def resumed(settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    mesh = sharded.mesh_of()
    ends: list[torch.Tensor] = []
    saved = b""
    for steps in (range(12), range(7), range(7, 12)):
        model = sharded.shard(sharded.net(), mesh["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = msdu.attach(model, optimizer, mesh=mesh["replicate"], **settings)
        if steps.start:
            state, of_model = torch.load(io.BytesIO(saved), weights_only=True)
            load_parts(model, of_model)
            run.load_state_dict(state)
        nets.train(model, optimizer, steps, dist.get_rank())
        if steps.stop == 7:
            packed = io.BytesIO()
            values = {name: p.to_local().detach() for name, p in model.named_parameters()}
            torch.save([run.state_dict(), values], packed)
            saved = packed.getvalue()
        else:
            run.finish()
            ends.append(sharded.parts(model))
        run.close()
    return ends[0], ends[1]


def test_a_resumed_run_is_the_same_to_the_bit() -> None:
    settings = {**LOCAL, "overlap": "delayed", "wire": "int8", "interval_steps": 4}
    for whole, again in ranks.run(resumed, settings, ranks=4):
        assert torch.equal(whole, again)


def uneven() -> tuple[torch.Tensor, bool, bool]:
    """One replica has two batches more; the other follows it, momentum included."""
    mesh = sharded.mesh_of()
    replica, group = dist.get_rank() // 2, mesh.get_group("replicate")
    model = sharded.shard(sharded.net(), mesh["shard"])
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with msdu.attach(model, optimizer, mesh=mesh["replicate"], **PLAIN) as run:
        for epoch in range(2):
            steps = range(10 * epoch, 10 * epoch + 4 + 2 * replica)
            nets.train(model, optimizer, steps, dist.get_rank())
            run.join()
        is_equal = sharded.are_equal(sharded.parts(model), group)
        moments = [optimizer.state[p]["exp_avg"].to_local() for p in model.parameters()]
        flat = torch.cat([one.reshape(-1) for one in moments])
    return sharded.parts(model), is_equal, sharded.are_equal(flat, group)


def test_uneven_replicas_join() -> None:
    for _, is_equal, is_equal_momentum in ranks.run(uneven, ranks=4):
        assert is_equal and is_equal_momentum


def by_itself() -> tuple[list[float], bool, str]:
    """Nothing set but speed; local steps are Adam's with moments led to the mean gradient's."""
    mesh = sharded.mesh_of()
    model = sharded.shard(nets.mlp(), mesh["shard"])
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    losses = []
    settings = {"warmup_steps": 4, "interval": "fixed", "interval_steps": 3, "wire": "int4"}
    with msdu.attach(model, optimizer, mesh=mesh["replicate"], **settings) as run:
        for step in range(40):
            optimizer.zero_grad()
            loss = nets.loss_of(model, *nets.batch(dist.get_rank(), step % 4))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        run.finish()
        domain = run.summary().domain
    is_equal = sharded.are_equal(sharded.parts(model), mesh.get_group("replicate"))
    return losses, is_equal, domain


def test_four_bits_and_local_steps_after_exact_ones_learn() -> None:
    for losses, is_equal, domain in ranks.run(by_itself, ranks=4):
        assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
        assert is_equal and domain == "parameter"


# --- tensor parallelism ---


class Block(torch.nn.Module):
    """Two layers by columns and rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(nets.FEATURES, 16)
        self.second = torch.nn.Linear(16, nets.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


def tensor_parallel(interval: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole model after training, and a plain one's of two ranks; TP ranks share a batch."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = sharded.mesh_of()
    replica = dist.get_rank() // 2
    settings = PLAIN if interval == 1 else {**LOCAL, "interval_steps": interval}
    ends = []
    for is_parallel in (True, False):
        model: Any = Block()
        if is_parallel:
            plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
            model = parallelize_module(model, mesh["shard"], plan)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with msdu.attach(model, optimizer, mesh=mesh["replicate"], **settings) as run:
            nets.train(model, optimizer, range(6), replica)
            run.finish()
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        ends.append(torch.cat([p.detach().double().reshape(-1) for p in whole]))
    return ends[0], ends[1]


@pytest.mark.parametrize("interval", [1, 3])
def test_tensor_parallelism_equals_a_plain_model(interval: int) -> None:
    for ours, plain in ranks.run(tensor_parallel, interval, ranks=4):
        nets.close_to(ours, plain, 1e-5)


# --- groups ---


def several() -> tuple[bool, bool, list[tuple[int, int]]]:
    """Two models over different groups at the same time: columns and rows of four ranks."""
    mesh = sharded.mesh_of()
    rank = dist.get_rank()
    groups = [mesh.get_group("replicate"), mesh.get_group("shard"), None]
    models = [nets.mlp(seed=1 + rank) for _ in groups]
    optimizers = [OPTIMIZERS["sgd"](model.parameters()) for model in models]
    runs = [
        msdu.attach(model, optimizer, process_group=group, **PLAIN)
        for model, optimizer, group in zip(models, optimizers, groups)
    ]
    for step in range(4):
        for model, optimizer in zip(models, optimizers):
            nets.train(model, optimizer, range(step, step + 1), rank)
    for run in runs:
        run.finish()
        run.close()
    equal = [sharded.are_equal(nets.flat(model), group) for model, group in zip(models, groups)]
    across = sharded.are_equal(nets.flat(models[0]), mesh.get_group("shard"))
    return all(equal), across, [(run.rank, run.ranks) for run in runs]


def test_attachments_over_several_groups_at_once() -> None:
    found = ranks.run(several, ranks=4)
    assert all(is_equal and not across for is_equal, across, _ in found)
    assert [places for *_, places in found] == [
        [(0, 2), (0, 2), (0, 4)],
        [(0, 2), (1, 2), (1, 4)],
        [(1, 2), (0, 2), (2, 4)],
        [(1, 2), (1, 2), (3, 4)],
    ]
