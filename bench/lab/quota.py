# SPDX-License-Identifier: Apache-2.0
"""Shares of a core for ranks, by quotas of the kernel's control groups (version 1 or 2).

A rank that uses up its quota stands still until the period ends; one that waits for a message
saves it, and is awake when the message comes. So what a rank gets is processor time, not time.
Groups have names outside of the lab. The process that made them removes them when it ends; what
one that was killed left behind goes when the next lab makes its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from network import Unfit

PERIOD_US = 5000
_QUOTA_US_MIN = 1000  # of the kernel
_MOST = 64.0
_LEAST = 0.01
_NAME = "msdu-lab-"


def parse_shares(text: str) -> tuple[float, ...]:
    """Cores of rank 0, 1, ...: 1,.5,.25; 0 is no limit; ValueError."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(share == 0 or _LEAST <= share <= _MOST for share in shares):
        raise ValueError(f"'{text}' are no shares of a core; allowed: {_LEAST:g} .. {_MOST:g}, "
                         "or 0 for no limit, such as 1,.5,.25,.25")
    return shares


def quota_of(share: float) -> tuple[int, int]:
    """Quota and period in us. The kernel takes no quota below 1 ms: then the period is longer."""
    quota = max(_QUOTA_US_MIN, round(PERIOD_US * share))
    return quota, max(PERIOD_US, round(quota / share))


def _controller() -> tuple[Path, bool]:
    """Where groups of the controller `cpu` are made, and whether that is version 2; Unfit."""
    unified = None
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(place), False
        if kind == "cgroup2":
            unified = Path(place)
    known = []
    if unified is not None:
        with contextlib.suppress(OSError):
            known = (unified / "cgroup.controllers").read_text().split()
    if unified is None or "cpu" not in known:
        raise Unfit("--cpu-share needs the control group controller 'cpu', which is not mounted")
    return unified, True


def _write(file: Path, text: str) -> None:
    """Control files take one write."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _limit(group: Path, share: float, is_unified: bool) -> None:
    quota, period = quota_of(share)
    if is_unified:
        _write(group / "cpu.max", f"{quota} {period}")
        return
    _write(group / "cpu.cfs_period_us", str(period))
    _write(group / "cpu.cfs_quota_us", str(quota))


def _remove(place: Path, name: str) -> None:
    for group in place.glob(f"{name}-*"):
        with contextlib.suppress(OSError):  # a process of it is left: nothing to be done
            group.rmdir()


def _remove_stale(place: Path) -> None:
    """Groups of labs that were killed."""
    for group in place.glob(f"{_NAME}*-*"):
        owner = group.name[len(_NAME):].split("-")[0]
        if not Path("/proc", owner).exists():
            _remove(place, f"{_NAME}{owner}")


@contextlib.contextmanager
def made(shares: Sequence[float], ranks: int) -> Iterator[list[int]]:
    """Groups of all ranks, as descriptors: who writes 0 into one is in that group; -1: no limit.

    Where there are fewer shares than ranks, they repeat. Unfit.
    """
    if not shares:
        yield []
        return
    if os.geteuid() != 0:
        raise Unfit("--cpu-share needs root: sudo python3 bench/lab ...")
    place, is_unified = _controller()
    name = f"{_NAME}{os.getpid()}"
    doors: list[int] = []
    try:
        _remove_stale(place)
        if is_unified:
            _write(place / "cgroup.subtree_control", "+cpu")
        for rank in range(ranks):
            share = shares[rank % len(shares)]
            if share == 0:
                doors.append(-1)
                continue
            group = place / f"{name}-{rank}"
            group.mkdir()
            _limit(group, share, is_unified)
            doors.append(os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        _remove(place, name)
        raise Unfit(f"--cpu-share: {error}") from error
    try:
        yield doors
    finally:
        for door in doors:
            if door >= 0:
                os.close(door)
        _remove(place, name)
