# SPDX-License-Identifier: Apache-2.0
"""One rank of a run over clock layers: all methods take a step in turn, again and again."""
from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist
from msdu import _stages_run
from torch import Tensor

from . import cases, clock, engines
from .cases import Case
from .orders import Way


def _square(made: Tensor, target: Tensor) -> Tensor:
    return ((made - target) ** 2).mean()


class Method:
    """A method with all that it learned about itself."""

    def __init__(self, way: Way, case: Case, device: clock.Clock, journal: clock.Journal) -> None:
        rank = dist.get_rank()
        row = way.machines.index(rank) if rank in way.machines else None
        samples = case.micro_batches // way.micro_batches
        form = (_stages_run.Form((samples, case.floats), torch.float32),)
        self.way = way
        self.engine = engines.Engine(
            way, lambda n: clock.ClockLayer(n, device, cases.FORWARD_S, cases.BACKWARD_S),
            [form] * (case.layers + 1), _square, row, engines.group_of(way.machines))
        self.seconds: list[float] = []
        self._journal, self._actions, self._begin = journal, journal.actions, 0.0
        self.loss: float | None = None

    def step(self, x: Tensor, y: Tensor) -> None:
        """Timed from the first rank's start to the last one's end: one machine, one clock."""
        for piece in self.engine.pieces.values():
            piece.zero_grad()
        self._actions = self._journal.actions = []
        dist.barrier()
        begin = time.monotonic()
        loss = self.engine.gradients(x, y)
        self._begin, seconds = since(begin)
        if loss is not None:
            self.loss = float(loss)
        self.seconds.append(seconds)

    def digest(self) -> tuple[str, float | None]:
        """Of all gradients and the loss, equal for all methods with the same micro-batches."""
        mine = {int(name): layer.weight.grad.item()
                for piece in self.engine.pieces.values() for name, layer in piece.named_children()}
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, (mine, self.loss))
        grads = {number: value for one, _ in every for number, value in one.items()}
        loss = next(loss for _, loss in every if loss is not None)
        text = " ".join(value.hex() for _, value in sorted(grads.items()))
        return hashlib.sha256(f"{loss.hex()} {text}".encode()).hexdigest()[:16], loss


    def timeline(self, case: Case) -> dict[str, Any]:
        """The last step in the form of `msdu plan --stages --json`, for stages_draw.py."""
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, self._actions)
        ranks = []
        for machine in self.way.machines:
            actions = [{**{name: one[name] for name in ("kind", "stage", "micro_batch")},
                        **{f"{name}_us": round(1e6 * (one[name] - self._begin))
                           for name in ("begin", "end")}} for one in every[machine]]
            name = f"{machine}: speed {case.speeds[machine]:g}"
            ranks.append({"machine": name, "actions": actions})
        return {"name": "stages", "profile": f"{self.way.name}, measured",
                "micro_batches": self.way.micro_batches, "step_us": 1e6 * self.seconds[-1],
                "ranks": ranks}


def since(begin: float) -> tuple[float, float]:
    """The first rank's begin, and seconds from it to the last one's call."""
    found = torch.tensor([begin, -time.monotonic()], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    first, end = float(found[0]), -float(found[1])
    return first, end - first


def main(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Results by method, on rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    case = Case(**task["case"])
    device = clock.Clock(case.speeds[dist.get_rank()])
    journal = clock.Journal()
    clock.open_in_stages(device, journal)
    torch.manual_seed(1)
    x = torch.randn(case.micro_batches, case.floats)
    y = torch.randn(case.micro_batches, case.floats)
    methods = [Method(Way(**way), case, device, journal) for way in task["ways"]]
    for _ in range(task["steps"] + 1):
        for method in methods:
            method.step(x, y)
    found = []
    for method in methods:
        digest, loss = method.digest()
        found.append({"method": method.way.name, "seconds": method.seconds[1:], "loss": loss,
                      "digest": digest, "timeline": method.timeline(case)})
    dist.barrier()
    dist.destroy_process_group()
    return found
