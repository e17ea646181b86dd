# SPDX-License-Identifier: Apache-2.0
"""Ranks of different speeds: how slow a rank is at a time, and a process that slows trainers down.

A trainer that nobody changed is stopped for a part of every PERIOD_S, with everything that it
started (SIGSTOP, SIGCONT). That needs no right and leaves nothing behind. It counts time, whether
the rank computes or waits; quota.py counts processor time. Both stop a rank's communication thread
too, for less than a period at a time.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

PERIOD_S = 0.02
BURST_FACTOR = 5.0  # a step takes so many times as long in a burst
BURST_S = 1.0  # mean length of one
CALM_S = 9.0  # mean time between two
_SLOWEST = 0.01


def parse_speeds(text: str) -> tuple[float, ...]:
    """Speeds of rank 0, 1, ...: 1,1,.5,.25; ValueError."""
    try:
        speeds = tuple(float(part) for part in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(_SLOWEST <= speed <= 1 for speed in speeds):
        raise ValueError(f"'{text}' are no speeds; allowed: {_SLOWEST:g} .. 1, such as 1,1,.5,.25")
    return speeds


@dataclass
class Speed:
    """Speed of one rank over time: its own, and a fifth of it in bursts that follow from a seed.

    Lengths of bursts and of the calm between them are exponential, so none can be foreseen from
    those before. `scale` makes all of them longer. Ask for times in ascending order.
    """

    rank: int
    base: float = 1.0
    seed: int | None = None  # none: no bursts
    scale: float = 1.0
    _is_burst: bool = field(default=True, init=False)
    _until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.seed} {self.rank}")
        if self.seed is None:
            self._is_burst, self._until = False, math.inf

    def at(self, seconds: float) -> float:
        """Steps in the time in which a rank of speed 1 makes one."""
        while seconds >= self._until:
            self._is_burst = not self._is_burst
            mean = BURST_S if self._is_burst else CALM_S
            self._until += self._random.expovariate(1 / mean) * self.scale
        return self.base / BURST_FACTOR if self._is_burst else self.base


def speeds_of(ranks: int, bases: Sequence[float], seed: int | None, scale: float = 1.0
              ) -> list[Speed]:
    """Of all ranks; where there are fewer speeds than ranks, they repeat."""
    return [Speed(rank, bases[rank % len(bases)] if bases else 1.0, seed, scale)
            for rank in range(ranks)]


class _Slowed:
    """A process group that runs for a part of each period."""

    def __init__(self, group: int, speed: Speed) -> None:
        self._group = group
        self._speed = speed
        self._origin = self._start = self.due = time.monotonic()
        self._is_stopped = True  # the first period begins with its first move

    def move(self) -> None:
        """What is due: let it run, or stop it for the rest of its period."""
        speed = self._speed.at(self.due - self._origin)
        if not self._is_stopped and self.due < self._start + PERIOD_S:
            self._send(signal.SIGSTOP)
            self._is_stopped = True
            self.due = self._start + PERIOD_S
            return
        if self._is_stopped:
            self._send(signal.SIGCONT)
            self._is_stopped = False
        late = time.monotonic() - self.due
        self._start = self.due + (late if late > PERIOD_S else 0.0)
        self.due = self._start + PERIOD_S * speed

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # not yet a group of its own, or gone
            os.killpg(self._group, number)


def _run(slowed: Sequence[_Slowed]) -> None:
    while True:
        first = min(slowed, key=lambda one: one.due)
        time.sleep(max(0.0, first.due - time.monotonic()))
        first.move()


def start(groups: Sequence[int], speeds: Sequence[Speed]) -> int | None:
    """Slow the process groups of ranks down; the helper's process id, None if all are even."""
    uneven = [(group, speed) for group, speed in zip(groups, speeds)
              if speed.base < 1 or speed.seed is not None]
    if not uneven:
        return None
    child = os.fork()
    if child == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # Ahead of the ranks, where allowed: late, it would let them run for longer.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            _run([_Slowed(group, speed) for group, speed in uneven])
        finally:
            os._exit(1)
    return child
