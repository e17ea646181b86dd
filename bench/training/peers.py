# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: what training of uneven ranks is compared with, over torch.distributed.rpc.

Every rank is a worker, and the server of an N-th of the parameters. A worker makes a step of its
optimizer, sends what it changed to all servers, and goes on with what they answer. So momentum is
the worker's, as in Petuum. N workers, tau: updates by others since the worker's last answer.

    asp           asynchronous: every update counts 1 / N at once, and nobody waits
    staleness     staleness-scaled (arXiv:1511.05950, eq. 6): 1 / tau, where tau is at least 1
    nsoft         n-softsync (likewise, section 3.1): a server takes the mean of `count` updates;
                  who sent one of them goes on with that mean. count = N: synchronous
    ssp           stale synchronous parallel (Ho et al., NIPS 2013): as asp, but who is more than
                  `bound` steps ahead of the slowest waits. bound = 0: synchronous
    dssp          dynamic SSP (arXiv:1908.11848): the bound is between `low` and `high`; a fast
                  worker that would wait is let go on for as many steps as make its wait shortest,
                  by the last two updates of itself and of the slowest
"""
from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc

from .method import Job, Method, own_address

PATIENCE_S = 600.0


class Asp:
    """The rule of a server: what an update counts, and when its sender may go on."""

    def begin(self, server: Server) -> None:
        """Called once."""

    def take(self, server: Server, worker: int, update: Tensor) -> None:
        """Count an update; server.steps has it already."""
        server.apply(update, 1 / server.ranks)

    def may_go(self, server: Server, worker: int) -> bool:
        """Is the answer to the worker's last update to be sent?"""
        return True

    def left(self, server: Server) -> None:
        """A worker has ended its training."""


class StalenessScaled(Asp):
    """The older what an update was computed from, the less it counts."""

    def take(self, server: Server, worker: int, update: Tensor) -> None:
        server.apply(update, 1 / max(1, server.version - server.seen[worker]))


class Soft(Asp):
    """Updates are counted `count` at a time."""

    def __init__(self, count: int) -> None:
        self.count = count

    def begin(self, server: Server) -> None:
        self.pending: list[Tensor] = []
        self.sent = [0] * server.ranks  # version that the last update of each came to

    def take(self, server: Server, worker: int, update: Tensor) -> None:
        self.pending.append(update)
        self.sent[worker] = server.version
        self.left(server)

    def may_go(self, server: Server, worker: int) -> bool:
        return server.version > self.sent[worker]

    def left(self, server: Server) -> None:
        if self.pending and len(self.pending) >= min(self.count, len(server.present)):
            mean = torch.stack(self.pending).mean(0)
            self.pending = []
            server.apply(mean, 1)


class Ssp(Asp):
    """Nobody is more than `bound` steps ahead of the slowest when it begins a step."""

    def __init__(self, bound: int) -> None:
        self.bound = bound

    def may_go(self, server: Server, worker: int) -> bool:
        return server.lead(worker) <= self.bound


class Dssp(Asp):
    """A bound that follows from who sent when."""

    def __init__(self, low: int, high: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.low, self.high, self.clock = low, high, clock

    def begin(self, server: Server) -> None:
        self.credits = [0] * server.ranks  # steps that a worker may still begin beyond `low`
        self.is_free = [False] * server.ranks
        self.times: list[list[float]] = [[] for _ in range(server.ranks)]  # last two updates

    def take(self, server: Server, worker: int, update: Tensor) -> None:
        super().take(server, worker, update)
        self.times[worker] = [*self.times[worker][-1:], self.clock()]
        lead = server.lead(worker)
        if lead > self.low and self.credits[worker] == 0:
            self.credits[worker] = self._extra(server, worker, self.high - lead + 1)
        self.is_free[worker] = lead > self.low and self.credits[worker] > 0
        self.credits[worker] -= self.is_free[worker]

    def may_go(self, server: Server, worker: int) -> bool:
        return self.is_free[worker] or server.lead(worker) <= self.low

    def _extra(self, server: Server, worker: int, most: int) -> int:
        """Steps after which the worker ends one when the slowest does (Algorithm 2)."""
        slowest = min(server.present, key=lambda one: server.steps[one])
        if len(self.times[worker]) < 2 or len(self.times[slowest]) < 2:
            return 0
        (fast_before, fast), (slow_before, slow) = self.times[worker], self.times[slowest]
        ends = [slow + (slow - slow_before) * (i + 1) for i in range(most + 1)]
        return min(range(most + 1), key=lambda extra: min(
            abs(end - fast - (fast - fast_before) * extra) for end in ends))


class Server:
    """A share of the parameters, and what its workers did."""

    def __init__(self, values: Tensor, ranks: int, rule: Asp) -> None:
        self.values = values
        self.ranks = ranks
        self.rule = rule
        self.present = set(range(ranks))
        self.version = 0  # updates applied
        self.seen = [0] * ranks  # version of the last answer
        self.steps = [0] * ranks
        self.most_ahead = 0  # of the slowest, when a step began
        self._waiting: set[int] = set()
        self._changed = threading.Condition()
        rule.begin(self)

    def apply(self, update: Tensor, weight: float) -> None:
        """Change the values; called by the rule."""
        self.values.add_(update, alpha=weight)
        self.version += 1

    def lead(self, worker: int) -> int:
        """Steps by which a worker is ahead of the slowest that still trains."""
        return self.steps[worker] - min((self.steps[one] for one in self.present), default=0)

    def exchange(self, worker: int, update: Tensor) -> Tensor:
        """Count an update, and answer when the rule allows it. TimeoutError."""
        with self._changed:
            # Who may go on reads what was there then, before anybody who went on changes it.
            self._wait(lambda: not any(self.rule.may_go(self, one) for one in self._waiting))
            self.steps[worker] += 1
            self.rule.take(self, worker, update)
            self._waiting.add(worker)
            self._changed.notify_all()
            self._wait(lambda: self.rule.may_go(self, worker))
            self._waiting.remove(worker)
            self.most_ahead = max(self.most_ahead, self.lead(worker))
            self.seen[worker] = self.version
            self._changed.notify_all()
            return self.values.clone()

    def leave(self, worker: int) -> None:
        """The worker sends no more."""
        with self._changed:
            self.present.discard(worker)
            self.rule.left(self)
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._changed.wait_for(condition, PATIENCE_S):
            raise TimeoutError(f"parameter server: no answer within {PATIENCE_S:g} s")


_server: Server | None = None  # of this process; calls from other ranks find it here


def _exchange(worker: int, update: Tensor) -> Tensor:
    assert _server is not None
    return _server.exchange(worker, update)


def _leave(worker: int) -> None:
    assert _server is not None
    _server.leave(worker)


def _values() -> Tensor:
    assert _server is not None
    return _server.values


def _connect(job: Job) -> None:
    """torch's RPC between all ranks, over TCP only: on one machine it would share memory."""
    os.environ.setdefault("TP_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    where = [""]
    if job.rank == 0:
        with socket.socket() as probe:
            probe.bind((own_address(), 0))
            where = ["tcp://{}:{}".format(*probe.getsockname())]
    dist.broadcast_object_list(where, src=0)
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=job.ranks + 4, rpc_timeout=PATIENCE_S, init_method=where[0],
        _transports=["uv"], _channels=["basic"])
    rpc.init_rpc(_name(job.rank), rank=job.rank, world_size=job.ranks,
                 rpc_backend_options=options)


def _name(rank: int) -> str:
    return f"rank{rank}"


class ParameterServer(Method):
    """A worker, and this rank's server."""

    def __init__(self, job: Job, rule: Asp) -> None:
        super().__init__(job)
        global _server
        self.parameters = [p for p in job.model.parameters() if p.requires_grad]
        self.flat = self._gather()
        dist.broadcast(self.flat, 0)
        _server = Server(self._shares(self.flat)[job.rank].clone(), job.ranks, rule)
        self.server = _server
        _connect(job)
        self._scatter()

    def step(self) -> None:
        self.optimizer.step()
        changed = self._gather() - self.flat
        parts = self._shares(changed)
        others = {rank: rpc.rpc_async(_name(rank), _exchange, (self.job.rank, parts[rank]))
                  for rank in range(self.job.ranks) if rank != self.job.rank}
        own = self.server.exchange(self.job.rank, parts[self.job.rank])
        self.flat = torch.cat([others[rank].wait() if rank in others else own
                               for rank in range(self.job.ranks)])
        self._scatter()

    def finish(self) -> None:
        for rank in range(self.job.ranks):
            rpc.rpc_sync(_name(rank), _leave, (self.job.rank,))
        dist.barrier()  # all have left, so nothing changes any more
        self.flat = torch.cat([rpc.rpc_sync(_name(rank), _values)
                               for rank in range(self.job.ranks)])
        self._scatter()

    def close(self) -> None:
        rpc.shutdown()

    def facts(self) -> dict[str, float]:
        """The largest lead over the slowest that this rank's server saw."""
        return {"server_most_ahead": self.server.most_ahead}

    def _gather(self) -> Tensor:
        with torch.no_grad():
            return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    def _scatter(self) -> None:
        with torch.no_grad():
            at = 0
            for parameter in self.parameters:
                count = parameter.numel()
                parameter.copy_(self.flat[at:at + count].view_as(parameter))
                at += count

    def _shares(self, flat: Tensor) -> tuple[Tensor, ...]:
        """One for each server, also where there are fewer parameters than servers."""
        ends = [len(flat) * rank // self.job.ranks for rank in range(1, self.job.ranks)]
        return flat.tensor_split(ends)


METHODS: dict[str, Callable[[Job], Method]] = {
    "asp": lambda job: ParameterServer(job, Asp()),
    "staleness": lambda job: ParameterServer(job, StalenessScaled()),
    "nsoft": lambda job: ParameterServer(job, Soft(job.count("count", max(1, job.ranks // 2)))),
    "ssp": lambda job: ParameterServer(job, Ssp(job.count("bound", 3))),
    "dssp": lambda job: ParameterServer(job, Dssp(job.count("low", 3), job.count("high", 15))),
}
