# SPDX-License-Identifier: Apache-2.0
"""What a method is, for those who run one.

A method is used like this, the same for all, by all ranks:

    method = methods.create(name, job)
    loss = criterion(method.forward(x), y); loss.backward(); method.step()
    method.settle()     before parameters are read for an evaluation
    method.finish()     after the last step
"""
from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Unavailable(Exception):
    """A method cannot run here; the text says why."""


@dataclasses.dataclass
class Job:
    """What a method gets to work on. `settings` are those of the run, all text."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rank: int
    ranks: int
    total_steps: int
    settings: dict[str, str]

    def take(self, name: str, default: float) -> float:
        """A number among the settings, removed from them."""
        return float(self.settings.pop(name, default))

    def count(self, name: str, default: int) -> int:
        """A whole number among the settings, removed from them."""
        return int(self.settings.pop(name, default))


class Method:
    """Training without any exchange; also the measure of what computing alone takes."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.forward: Callable[[Tensor], Tensor] = job.model
        self.optimizer = job.optimizer

    def step(self) -> None:
        """Update the parameters; called after backward."""
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        self.optimizer.zero_grad()

    def settle(self) -> None:
        """Make the parameters safe to read; exchanges nothing that others have not."""

    def finish(self) -> None:
        """After the last step: every rank ends with the result; connections stay open."""

    def close(self) -> None:
        """Leave; after the bytes of the connections were counted."""

    def saved(self) -> Any:
        """What a checkpoint of this rank holds beside model and optimizer."""
        return None

    def load(self, state: Any) -> None:
        """Go on from saved(), before the first step."""

    def facts(self) -> dict[str, Any]:
        """What the record shall hold beside the common fields; names begin with the method's."""
        return {}


def own_address() -> str:
    """The address of this rank that others reach: that of the way to the master."""
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(getattr(store, "host", "127.0.0.1")), 9))
        return str(probe.getsockname()[0])
