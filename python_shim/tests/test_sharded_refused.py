# SPDX-License-Identifier: Apache-2.0
"""Sharded models: what is refused, and how; a rank of a replica that is lost, or has a NaN."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import nets
import pytest
import ranks
import sharded
import torch
import torch.distributed as dist
from forks import launch
from nets import OPTIMIZERS
from test_parity import LOCAL, PLAIN
from torch import nn

import msdu


def refused(model: Any, **where: Any) -> str:
    """The error; parameters must be as they were."""
    before = sharded.parts(model)
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **where)
    assert torch.equal(before, sharded.parts(model))
    return f"{problem.value.status} {problem.value}"


def refusals() -> dict[str, str]:
    mesh = sharded.mesh_of()
    found = {}
    hsdp = sharded.shard(sharded.net(), mesh)
    found["hsdp"] = refused(hsdp, mesh=mesh["replicate"])
    found["hsdp, everyone"] = refused(hsdp)
    inner = sharded.shard(sharded.net(), mesh["shard"])
    found["over its shards"] = refused(inner, mesh=mesh["shard"])
    found["everyone"] = refused(inner)
    found["both"] = refused(
        inner, mesh=mesh["replicate"], process_group=mesh.get_group("replicate")
    )
    found["two dimensions"] = refused(inner, mesh=mesh)
    found["by numbers"] = refused(inner, ranks=2, rank=0)
    found["profile"] = ""
    with msdu.attach(inner, mesh=mesh["replicate"], **PLAIN) as run:
        with pytest.raises(msdu.Error) as problem:
            run.record("profile.json")
        found["profile"] = str(problem.value)
    net = sharded.net()
    early = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(sharded.shard(net, mesh["shard"]), early, mesh=mesh["replicate"])
    found["early"] = str(problem.value)
    even = sharded.shard(nn.Sequential(nn.Linear(4, 4)), mesh["shard"])
    diagonals = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    mine = diagonals[dist.get_rank() in (1, 2)]
    found["diagonal"] = refused(even, process_group=mine)
    return found


WORDS = {
    "hsdp": ("MSDU_ERR_UNSUPPORTED", "kept equal by torch", "twice", "mesh['shard']"),
    "hsdp, everyone": ("MSDU_ERR_UNSUPPORTED", "fully_shard(model, mesh=mesh['shard'])"),
    "over its shards": ("MSDU_ERR_UNSUPPORTED", "another part", "mesh['replicate']"),
    "everyone": ("MSDU_ERR_UNSUPPORTED", "'0.weight'", "another part", "mesh['replicate']"),
    "both": ("MSDU_ERR_INVALID", "give one"),
    "two dimensions": ("MSDU_ERR_INVALID", "2 dimensions", "mesh['replicate']"),
    "by numbers": ("MSDU_ERR_INVALID", "not by ranks"),
    "profile": ("record",),
    "early": ("after fully_shard()",),
    # the same shapes, but another part of them
    "diagonal": ("MSDU_ERR_MISMATCH", "part (0,) of", "part (1,) of"),
}


def test_what_cannot_be_attached_says_what_can() -> None:
    for rank, found in enumerate(ranks.run(refusals, ranks=4)):
        for name, words in WORDS.items():
            for word in words:
                assert word in found[name], (rank, name, found[name])
        outside = ("rank 0 is rank 0, rank 1 is rank 3", "rank 0 is rank 1, rank 1 is rank 2")
        assert outside[rank in (1, 2)] in found["diagonal"]


# --- a rank that is gone, a NaN ---


def losing(settings: dict[str, Any]) -> Any:
    """Rank 3, of the second replica, is gone in the middle: what the others get, and when."""

    def body(rank: int) -> tuple[str, str, float]:
        mesh = sharded.mesh_of()
        model = sharded.shard(sharded.net(), mesh["shard"])
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        run = msdu.attach(model, optimizer, mesh=mesh["replicate"], deadline_ms=8000, **settings)
        nets.train(model, optimizer, range(3), rank)
        if rank == 3:
            os._exit(9)
        began = time.monotonic()
        try:
            nets.train(model, optimizer, range(3, 100), rank)
        except (msdu.Error, RuntimeError) as problem:
            return type(problem).__name__, str(problem), time.monotonic() - began
        finally:
            run.close()
        return "", "", 0.0

    return body


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 4}], ids=["1", "4"])
def test_a_lost_rank_is_named_in_its_group(tmp_path: Path, settings: dict[str, Any]) -> None:
    outcomes = launch(4, losing(settings), tmp_path)
    assert outcomes[3].code == 9
    for rank, one in enumerate(outcomes[:3]):
        kind, text, seconds = one.value
        assert seconds < 12
        if rank == 1:  # has the same shard
            assert kind == "Error" and "rank 1 is rank 3 of torch.distributed" in text
        elif rank == 2:  # the other shard of the same replica: torch's own words, or ours
            assert kind
        else:
            assert kind == "Error" and "rank 1 is rank 2 of torch.distributed" in text


def not_finite() -> tuple[str, bool]:
    """A NaN in one rank's batch reaches all shards of its replica, so all groups see it."""
    mesh = sharded.mesh_of()
    rank = dist.get_rank()
    model = sharded.shard(nets.mlp(), mesh["shard"])
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, mesh=mesh["replicate"], **PLAIN) as run:
        nets.train(model, optimizer, range(2), rank)
        before = sharded.parts(model)
        optimizer.zero_grad()
        x, y = nets.batch(rank, 2)
        nets.loss_of(model, x * (float("nan") if rank == 2 else 1.0), y).backward()
        with pytest.raises(msdu.Error) as problem:
            optimizer.step()
        is_kept = torch.equal(before, sharded.parts(model))
        optimizer.zero_grad()
        nets.train(model, optimizer, range(3, 5), rank)
        run.finish()
    return str(problem.value.status), is_kept


def test_a_nan_stops_all_ranks_before_the_update() -> None:
    for status, is_kept in ranks.run(not_finite, ranks=4):
        assert status == "MSDU_ERR_NOT_FINITE" and is_kept
