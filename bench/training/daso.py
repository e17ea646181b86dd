# SPDX-License-Identifier: Apache-2.0
"""DASO's rule (arXiv:2104.05588, heat 1.8.0: heat/optim/dp_optimizer.py) over torch.distributed.

This is not heat. Heat's class needs GPUs, and torch below 2.11.1; what it computes is done here, on
the host. Inside a host gradients are averaged in every step. Every `skips` steps one rank of each
host sends its parameters to its like on the other hosts, in turn. `wait` steps later they are merged
and given to the other ranks of the host. The first `warmup` steps, and the last, average at once.
Not taken over: bfloat16 while averaging at once, and skips that follow the loss of an epoch.
"""
from __future__ import annotations

import dataclasses
import os

import torch
import torch.distributed as dist
from torch import Tensor

from .method import Job, Method


def merged(own: Tensor, total: Tensor, hosts: int, waited: int) -> Tensor:
    """What a rank has made of its parameters, and the sum of those that all hosts sent: heat's
    (2 W w + sum of w_j) / (2 W + H), where 2 W is 1 without a wait."""
    weight = 2.0 * waited if waited > 0 else 1.0
    return (own * weight + total) / (weight + hosts)


@dataclasses.dataclass
class _Sent:
    work: dist.Work | None  # of who sends
    total: Tensor
    index: int  # of the sender in its host
    due: int  # step


class DasoRule(Method):
    """A rank of a host with `per_host` ranks; the launcher's LOCAL_WORLD_SIZE says how many."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.local = job.count("per_host", int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self.skips, self.waits = job.count("skips", 4), job.count("wait", 1)
        self.warmup = job.count("warmup", job.total_steps // 10)
        self.hosts = job.ranks // self.local
        self.host, self.index = divmod(job.rank, self.local)
        inside = [dist.new_group([host * self.local + i for i in range(self.local)])
                  for host in range(self.hosts)]
        between = [dist.new_group([host * self.local + i for host in range(self.hosts)])
                   for i in range(self.local)]
        self.inside, self.between = inside[self.host], between[self.index]
        self.parameters = [p for p in job.model.parameters() if p.requires_grad]
        self.made = self.turn = 0
        self.sent: _Sent | None = None

    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.inside)
                parameter.grad /= self.local
        self.optimizer.step()
        self.made += 1
        if self.sent and self.sent.due <= self.made:
            self._receive(self.waits)
        if self.made <= self.warmup:
            self._average()
        elif self.sent is None and self.made % self.skips == 0:
            self._send(self.waits)

    def finish(self) -> None:
        if self.sent:
            self._receive(self.waits)
        self._average()

    def _average(self) -> None:
        """All hosts' parameters at once, as heat does it while it does not skip."""
        self._send(0)
        assert self.sent is not None
        sent, self.sent = self.sent, None
        if sent.work is not None:
            sent.work.wait()
            self._scatter(sent.total / self.hosts)
        self._share(sent.index)

    def _send(self, wait: int) -> None:
        total = self._gather()
        work = None
        if self.index == self.turn:
            work = dist.all_reduce(total, group=self.between, async_op=True)
        self.sent = _Sent(work, total, self.turn, self.made + wait)
        self.turn = (self.turn + 1) % self.local

    def _receive(self, waited: int) -> None:
        assert self.sent is not None
        sent, self.sent = self.sent, None
        if sent.work is not None:
            sent.work.wait()
            self._scatter(merged(self._gather(), sent.total, self.hosts, waited))
        self._share(sent.index)

    def _share(self, index: int) -> None:
        """The sender's parameters to all ranks of its host."""
        whole = self._gather()
        dist.broadcast(whole, self.host * self.local + index, group=self.inside)
        self._scatter(whole)

    def _gather(self) -> Tensor:
        with torch.no_grad():
            return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    def _scatter(self, flat: Tensor) -> None:
        with torch.no_grad():
            parts = flat.split([parameter.numel() for parameter in self.parameters])
            for parameter, part in zip(self.parameters, parts):
                parameter.copy_(part.view_as(parameter))
