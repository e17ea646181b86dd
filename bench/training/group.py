# SPDX-License-Identifier: Apache-2.0
"""The ranks of a run as a group: processes over torch.distributed, or threads of one process."""
from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Processes:
    """Ranks that are processes, over torch's default group."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def barrier(self) -> None:
        """Until all ranks are here."""
        dist.barrier()

    def add_up(self, tensor: Tensor) -> None:
        """The sum over ranks, in place."""
        dist.all_reduce(tensor)

    def gather(self, one: Any) -> list[Any]:
        """What each rank gave, by rank, on all."""
        everyone: list[Any] = [None] * self.ranks
        dist.all_gather_object(everyone, one)
        return everyone


class Meeting:
    """Where threads meet."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.given: list[Any] = [None] * ranks


class Threads:
    """Ranks that are threads of one process. A thread that fails ends the waiting of the others
    by `meeting.barrier.abort()`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.ranks = meeting, rank, len(meeting.given)

    def barrier(self) -> None:
        """Until all ranks are here."""
        self.meeting.barrier.wait()

    def add_up(self, tensor: Tensor) -> None:
        """The sum over ranks, in place, in their order: equal bits on all."""
        parts = self.gather(tensor)
        total = torch.stack(parts).sum(0)
        self.barrier()  # others may still read what is overwritten now
        tensor.copy_(total)

    def gather(self, one: Any) -> list[Any]:
        """What each rank gave, by rank, on all; not copied."""
        self.meeting.given[self.rank] = one
        self.barrier()
        everyone = list(self.meeting.given)
        self.barrier()  # before the places are used again
        return everyone


Group = Processes | Threads
