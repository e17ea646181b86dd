# SPDX-License-Identifier: Apache-2.0
"""Ranks that meet by torch's store: groups one after the other, and stores that fail."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from test_parity import PLAIN

import msdu
from msdu import _store


def train(process_group: Any = None, **settings: Any) -> tuple[int, int, torch.Tensor]:
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(
        model, optimizer, process_group=process_group, **PLAIN, **settings
    ) as attachment:
        nets.train(model, optimizer, range(2), attachment.rank)
        attachment.finish()
        return attachment.rank, attachment.ranks, nets.flat(model)


def again() -> list[tuple[int, int, torch.Tensor]]:
    """A group that is destroyed and made again, and no group: by one store, torchrun's agent's."""
    rank = ranks.rank()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    agent = dist.TCPStore(host, port, is_master=False)
    found = []
    for life in range(3):
        mine = dist.PrefixStore(str(life), agent)  # torch itself would read what it left there
        dist.init_process_group("gloo", store=mine, rank=rank, world_size=2)
        found.append(train())
        dist.destroy_process_group()
        found.append(train())
    return found


def test_a_process_group_made_again() -> None:
    for one, other in zip(*ranks.run(again)):
        assert (one[0], other[0], one[1], other[1]) == (0, 1, 2, 2)
        assert torch.equal(one[2], other[2])


def a_part_first() -> tuple[int, int, torch.Tensor]:
    """A group of two of three ranks attaches before all do."""
    rank, _ = ranks.join_torch()
    part = dist.new_group([0, 2])
    if rank != 1:
        train(part)
        train(part)
    return train()


def test_a_part_of_the_ranks_attaches_before_all_do() -> None:
    found = ranks.run(a_part_first, ranks=3)
    assert [(rank, size) for rank, size, _ in found] == [(0, 3), (1, 3), (2, 3)]
    assert torch.equal(found[0][2], found[2][2])


def missing(absent: int) -> str:
    rank, _ = ranks.join_torch()
    if rank == absent:
        dist.barrier()
        return ""
    with pytest.raises(msdu.Error) as caught:
        train()
    dist.barrier()
    assert caught.value.status == "MSDU_ERR_TIMEOUT"
    return str(caught.value)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_does_not_come_is_named_within_the_deadline(absent: int) -> None:
    texts = ranks.run(missing, absent, env={"MSDU_DEADLINE_MS": "1000"})
    if absent == 0:
        for word in ("rendezvous store://127.0.0.1", "rank 0 was not reached within 1 s", "rank 1"):
            assert word in texts[1]
    else:
        assert "rank 1 did not join" in texts[0]


class Broken:
    """A store that does something else."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def set(self, *_: Any) -> None:
        if self._kind == "interrupt":
            raise KeyboardInterrupt
        raise RuntimeError("Broken pipe\nat some place in C++")

    def wait(self, _: list[str], span: datetime.timedelta) -> None:
        if self._kind == "late":
            time.sleep(span.total_seconds())
            raise RuntimeError("Socket Timeout")
        if self._kind == "gone":
            raise RuntimeError("Connection reset by peer")

    def get(self, _: str) -> bytes:
        return b"\0\1\2" if self._kind == "garbage" else b"x" * 100_000


def by_broken(kind: str, rank: int) -> tuple[str, str]:
    model = nets.mlp()
    context = msdu._context.Context  # every context gets the store of this test
    made = context.__init__

    def with_store(self: Any, given: Any, is_probe: bool = False, store: Any = None) -> None:
        made(self, given, is_probe, _store.Store(Broken(kind), "", 5))

    context.__init__ = with_store  # type: ignore[method-assign]
    os.environ["MSDU_DEADLINE_MS"] = "1000"
    start = time.monotonic()
    try:
        msdu.attach(model, ranks=2, rank=rank)
    except KeyboardInterrupt:
        return "interrupted", ""
    except msdu.Error as problem:
        assert time.monotonic() - start < 10
        return problem.status, str(problem)
    return "", ""


@pytest.mark.parametrize(
    ("kind", "rank", "status", "words"),
    [
        ("gone", 0, "MSDU_ERR_IO", ("rank 0", 'set of "msdu/msdu/5"', "Broken pipe")),
        ("gone", 1, "MSDU_ERR_IO", ("rank 1", 'get of "msdu/msdu/5"', "Connection reset by peer")),
        ("late", 1, "MSDU_ERR_TIMEOUT", ("within 1 s", "Socket Timeout")),
        ("garbage", 1, "MSDU_ERR_TIMEOUT", ("within 1 s", "not readable")),
        ("long", 1, "MSDU_ERR_IO", ("100000 bytes",)),
        ("interrupt", 0, "interrupted", ()),
    ],
)
def test_a_store_that_fails(kind: str, rank: int, status: str, words: tuple[str, ...]) -> None:
    # the other rank is not there: the store alone decides
    (found,) = ranks.run(by_broken, kind, rank, ranks=1)
    assert found[0] == status, found
    assert all(word in found[1] for word in words), found
