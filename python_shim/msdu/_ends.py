# SPDX-License-Identifier: Apache-2.0
"""Lines for the user of ``python -m msdu``, above all the one where nothing was attached."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from . import _tensors

_place = {"rank": -1}  # as torch.distributed said while it was there; -1: it was not


def _rank() -> int:
    if dist.is_available() and dist.is_initialized():
        _place["rank"] = dist.get_rank()
    if _place["rank"] >= 0:
        return _place["rank"]
    return int(os.environ.get("RANK") or 0)


def notice(text: str) -> None:
    """One line on standard error, by rank 0."""
    if _rank() == 0:
        print(f"msdu: {text}", file=sys.stderr)


class Ends:
    """What was seen of a script, to say at its end why nothing was attached.

    Attributes:
        wraps: how many DistributedDataParallel it made.
        forwards: their training forwards while they were not attached.
        unsynced: those of them whose backward pass is not reduced.
        has_spawned: it started ranks, which have an end of their own.
    """

    def __init__(self) -> None:
        self.wraps = 0
        self.forwards = 0
        self.unsynced = 0
        self.has_spawned = False
        self._ranks = 0
        self._sharding = ""
        self._reason = ""

    def look(self) -> None:
        """Now and then: torch.distributed may be gone at the end."""
        if not self._ranks and dist.is_available() and dist.is_initialized():
            self._ranks = dist.get_world_size()
            _rank()

    def saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made."""
        self.look()
        params: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]
        self._sharding = self._sharding or _tensors.sharding_of(params)

    def out(self, text: str) -> None:
        """Something is left to the script, which is said now."""
        self._reason = text.partition(": ")[2]
        notice(text)

    def tell_nothing(self) -> None:
        """Nothing was attached: one line, by whom it could have been."""
        self.look()
        if self._ranks or not self.has_spawned:
            notice(f"nothing was attached, the script ran as without msdu: {self._why()}")

    def _why(self) -> str:
        if self._reason:
            return self._reason
        if self._sharding:
            return (
                f"its parameters are sharded by {self._sharding}; msdu.attach() in the script "
                "synchronizes replicas of models that fully_shard has sharded"
            )
        if not self._ranks:
            return "it did not initialize torch.distributed"
        if self._ranks == 1 and not self.wraps:
            return "it is one process"
        if not self.wraps:
            return "no DistributedDataParallel and no all_reduce of gradients was seen"
        if not self.forwards:
            return "its DistributedDataParallel saw no training forward"
        if self.unsynced == self.forwards:
            return (
                "no forward of its DistributedDataParallel was one whose gradients torch reduces "
                "(no_sync(), or require_backward_grad_sync was False)"
            )
        return "no torch.optim optimizer owned the parameters of its DistributedDataParallel"
