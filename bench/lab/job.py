# SPDX-License-Identifier: Apache-2.0
"""One run of a command as ranks: start, collect output, watch, stop."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import kernel
import network
import pace

STATUS_TIMEOUT = 124  # as timeout(1)
_STOP_S = 5.0  # between SIGTERM and SIGKILL
_READ_BYTES = 65536
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Plan:
    """What to run in every namespace, and how long."""

    command: Sequence[str]
    environment: Mapping[str, str]  # on top of the caller's; %r is the rank
    cpus: Sequence[frozenset[int]]  # of rank r: entry r modulo their number; empty: any
    output_dir: str | None
    timeout_s: float | None
    grace_s: float  # for the others after a rank failed
    speeds: Sequence[pace.Speed] = ()  # by rank; empty: as fast as the machine
    quotas: Sequence[int] = ()  # by rank, of quota.made(); empty: none


@dataclass
class Rank:
    """A started rank. status is None while it runs, then as a shell has it: 128 + signal."""

    rank: int
    pid: int
    output: int
    log: int | None
    started: float
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # user and system, with those of its children that it waited for
    status: int | None = None
    tail: collections.deque[bytes] = field(default_factory=lambda: collections.deque(maxlen=64))


def environment_of(rank: int, net: network.Network, extra: Mapping[str, str]) -> dict[str, str]:
    """Variables of a rank, as torchrun would name its place."""
    made = {
        "RANK": str(rank),
        "WORLD_SIZE": str(net.ranks),
        "LOCAL_RANK": str(rank % net.per_host),
        "LOCAL_WORLD_SIZE": str(net.per_host),
        "GROUP_RANK": str(net.host_of(rank)),
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": "29500",
        "MSDU_RENDEZVOUS": f"tcp://{network.address(0)}:{network.PORT}",
        "MSDU_INTERFACE": network.INTERFACE,
        "GLOO_SOCKET_IFNAME": network.INTERFACE,
        "NCCL_SOCKET_IFNAME": network.INTERFACE,
        "TP_SOCKET_IFNAME": network.INTERFACE,
    }
    # Ranks share this machine's cores: one thread each unless the caller knows better.
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    given = {name: value.replace("%r", str(rank)) for name, value in extra.items()}
    return {**defaults, **os.environ, **made, **given}


def log_path(output_dir: str, rank: int) -> str:
    """Where the output of a rank goes."""
    return os.path.join(output_dir, f"rank{rank}.log")


def _become(rank: int, net: network.Network, plan: Plan, output: int) -> None:
    """In the child: turn into the rank. Returns never; OSError."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number in (*kernel.STOP_SIGNALS, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if plan.quotas and plan.quotas[rank] >= 0:
        os.write(plan.quotas[rank], b"0")
    net.enter(rank)
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus[rank % len(plan.cpus)])
    environment = environment_of(rank, net, plan.environment)
    os.execvpe(plan.command[0], list(plan.command), environment)


def _start(rank: int, net: network.Network, plan: Plan) -> Rank:
    log = None
    if plan.output_dir is not None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(log_path(plan.output_dir, rank), flags, 0o644)
    output, theirs = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            _become(rank, net, plan, theirs)
        except OSError as error:
            os.write(theirs, f"lab: {plan.command[0]}: {error}\n".encode())
        finally:
            os._exit(127)
    os.close(theirs)
    os.set_blocking(output, False)
    return Rank(rank, pid, output, log, started)


class Job:
    """All ranks of one run."""

    def __init__(self, net: network.Network, plan: Plan, helpers: Mapping[int, str] = {}) -> None:
        """Start the ranks; helpers are named processes that must live as long as they do."""
        self._plan = plan
        self._helpers = dict(helpers)
        self._is_stopping = False
        self.helper_cpu_seconds: dict[str, float] = {}
        self._started = time.monotonic()
        self.status: int | None = None  # of the run: 0, or the first thing that went wrong
        self._failed_at = float("inf")
        self.ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        for rank in range(net.ranks):
            self.ranks.append(_start(rank, net, plan))
            self._selector.register(self.ranks[-1].output, selectors.EVENT_READ, self.ranks[-1])
            self._selector.register(os.pidfd_open(self.ranks[-1].pid), selectors.EVENT_READ)
        slower = pace.start([rank.pid for rank in self.ranks], plan.speeds)
        if slower is not None:
            self._helpers[slower] = "pacing"

    @property
    def running(self) -> list[Rank]:
        """Ranks that have not ended."""
        return [rank for rank in self.ranks if rank.status is None]

    def watch(self, every_second: Callable[[float], None] | None = None) -> None:
        """Until all ranks ended, by themselves, after a failure, at the timeout or by a signal."""
        deadline = self._started + (self._plan.timeout_s or float("inf"))
        next_second = self._started + 1 if every_second else float("inf")
        try:
            while self.running:
                kernel.raise_if_stopped()
                self._wait(min(1.0, deadline - time.monotonic(), next_second - time.monotonic()))
                now = time.monotonic()
                deadline = min(deadline, self._failed_at + self._plan.grace_s)
                if now >= deadline and self.running:
                    text = f"stopped {len(self.running)} ranks after {now - self._started:.1f} s"
                    self._fail(STATUS_TIMEOUT, text)
                    break
                if every_second is not None and now >= next_second:
                    every_second(now - self._started)
                    next_second = max(next_second + 1, now)
        except kernel.Stopped as stop:
            self._fail(128 + stop.signum, f"stopped by {signal.Signals(stop.signum).name}")
        self._stop()
        self._close()
        self.status = self.status or 0

    def _fail(self, status: int, text: str) -> None:
        """The first failure is the run's; its moment starts the others' time of grace."""
        print(f"lab: {text}", file=sys.stderr)
        if self.status is None:
            self.status = status
            self._failed_at = time.monotonic()

    def _wait(self, seconds: float) -> None:
        """Sleep until a rank writes or ends, at most so long; then take what there is."""
        for key, _ in self._selector.select(max(0.0, seconds)):
            if key.data is None:  # a rank ended; its descriptor would stay readable
                self._selector.unregister(key.fd)
                os.close(key.fd)
            else:
                self._read(key.data)
        self._reap()

    def _read(self, rank: Rank) -> bool:
        """Pass on one piece of output; false if there is none now."""
        try:
            data = os.read(rank.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):
                self._selector.unregister(rank.output)
            return False
        if rank.log is not None:
            os.write(rank.log, data)
        if rank.rank == 0:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        rank.tail.append(data[-_TAIL_BYTES:])
        return True

    def _reap(self, flags: int = os.WNOHANG) -> None:
        """Take the status of every process that ended, orphans included; 0: wait for all."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, wait_status, usage = os.wait4(-1, flags)
                if pid == 0:
                    return
                cpu_seconds = usage.ru_utime + usage.ru_stime
                if pid in self._helpers:
                    self._helper_ended(pid, cpu_seconds)
                for rank in self.running:
                    if rank.pid == pid:
                        rank.cpu_seconds = cpu_seconds
                        self._ended(rank, kernel.exit_status(wait_status))

    def _helper_ended(self, pid: int, cpu_seconds: float) -> None:
        name = self._helpers.pop(pid)
        self.helper_cpu_seconds[name] = cpu_seconds
        if not self._is_stopping:
            self._fail(1, f"the {name} ended early")

    def _ended(self, rank: Rank, status: int) -> None:
        rank.seconds = time.monotonic() - rank.started
        rank.status = status
        while self._read(rank):
            pass
        if status != 0 and self.status is None:
            if rank.rank != 0:
                lines = b"".join(rank.tail).decode(errors="replace").splitlines()[-20:]
                print(*(f"[{rank.rank}] {line}" for line in lines), sep="\n", file=sys.stderr)
            self._fail(
                status,
                f"rank {rank.rank} ended with status {status} after "
                f"{rank.seconds:.1f} s; the others have {self._plan.grace_s:g} s",
            )

    def _stop(self) -> None:
        """SIGTERM to what runs, a while later SIGKILL to everything in the process namespace."""
        try:
            for rank in self.running:
                with contextlib.suppress(ProcessLookupError):  # not yet a group of its own
                    os.killpg(rank.pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            while self.running and time.monotonic() < deadline:
                self._wait(deadline - time.monotonic())
        finally:
            self._is_stopping = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all but this process, which is the first here
            self._reap(0)

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is None:
                os.close(key.fd)
        self._selector.close()
        for rank in self.ranks:
            os.close(rank.output)
            if rank.log is not None:
                os.close(rank.log)
