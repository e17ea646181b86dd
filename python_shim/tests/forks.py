# SPDX-License-Identifier: Apache-2.0
"""Ranks as forked processes: torch is imported once, so tests with real processes are quick."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import random
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable

import places
import torch  # before the fork
import torch._dynamo  # which the first optimizer of a process imports, in seconds
import torch.distributed as dist

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LIMIT_S = 100.0
# Options of ``python -m msdu``: plain training, and local steps.
EXACT = ["--interval", "fixed", "--interval-steps", "1", "--wire", "float32"]
LOCAL = ["--interval", "fixed", "--interval-steps", "4", "--domain", "parameter", "--wire", "int8"]
# What scripts made, until their process ends: torch's Gloo, which waits for its threads, may wait
# for ever when it goes while a script's names are cleared.
_kept: list[Any] = []


class Outcome:
    """What became of a rank.

    Attributes:
        value: what its function returned, or what its script left in ``RESULT``.
        problem: traceback of its exception; empty: none.
        output: what it printed.
        code: exit status; negative: killed by that signal.
    """

    def __init__(self, value: Any, problem: str, output: str, code: int) -> None:
        self.value = value
        self.problem = problem
        self.output = output
        self.code = code


def free_port() -> int:
    """A port that nobody listens on now.

    Not one that the kernel gives out by itself: torch's Gloo of a script before may get that until
    it is used, and whoever then looks for the store at it waits for ever.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        low = int(file.read().split()[0])
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("", random.randrange(10000, low)))
            except OSError:
                continue
            return int(probe.getsockname()[1])


def _keep_groups() -> None:
    original = dist.destroy_process_group

    def destroy(*args: Any, **kwargs: Any) -> None:
        if dist.is_initialized():
            _kept.append(dist.group.WORLD)
        original(*args, **kwargs)

    dist.destroy_process_group = destroy


def _child(rank: int, function: Callable[[int], Any], path: Path, env: dict[str, str]) -> None:
    status = 70
    try:
        os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
        os.setsid()
        out = os.open(path.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
        torch.set_num_threads(1)
        value, problem, status = None, "", 0
        try:
            places.arrive()
            _keep_groups()
            value = function(rank)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            problem = "" if status == 0 else f"SystemExit: {end.code}"
        except BaseException:
            status, problem = 1, traceback.format_exc()
        path.write_bytes(pickle.dumps((value, problem)))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def launch(
    count: int, function: Callable[[int], Any], folder: Path, limit_s: float = LIMIT_S, **env: str
) -> list[Outcome]:
    """Run ``function(rank)`` in ``count`` forked processes that find each other as under torchrun.

    Raises:
        TimeoutError: one was still running after ``limit_s``; all are killed. It says where.
    """
    folder.mkdir(parents=True, exist_ok=True)
    common = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **env,
    }
    paths = [folder / f"rank{rank}" for rank in range(count)]
    pids = []
    for rank, path in enumerate(paths):
        path.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            _child(rank, function, path, common)
        pids.append(pid)
    codes = _wait(pids, paths, limit_s)
    return [_outcome(path, code) for path, code in zip(paths, codes)]


def _places(pids: list[int], paths: list[Path]) -> str:
    """Where the threads of these ranks are."""
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    time.sleep(1)
    return "\n".join(path.with_suffix(".out").read_text(errors="replace") for path in paths)


def _wait(pids: list[int], paths: list[Path], limit_s: float) -> list[int]:
    codes: dict[int, int] = {}
    end = time.monotonic() + limit_s
    try:
        while len(codes) < len(pids):
            for pid in pids:
                if pid not in codes:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        codes[pid] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                left = [rank for rank, pid in enumerate(pids) if pid not in codes]
                where = _places([pids[rank] for rank in left], [paths[rank] for rank in left])
                raise TimeoutError(f"ranks {left} still run after {limit_s} s: {where}")
            select.select([], [], [], 0.02)
    finally:
        for pid in pids:
            if pid not in codes:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return [codes[pid] for pid in pids]


def _outcome(path: Path, code: int) -> Outcome:
    output = path.with_suffix(".out").read_text(errors="replace")
    value, problem = None, f"exit status {code}"
    if path.exists():
        value, problem = pickle.loads(path.read_bytes())
    return Outcome(value, problem, output, code)


def values(outcomes: list[Outcome]) -> list[Any]:
    """What the ranks returned; all of them must have ended well."""
    for rank, one in enumerate(outcomes):
        assert one.code == 0 and not one.problem, f"rank {rank}: {one.problem}\n{one.output}"
    return [one.value for one in outcomes]


def attachments() -> list[Any]:
    """Those that ``python -m msdu`` made in this process."""
    watch = getattr(sys.modules.get("msdu._intercept"), "_watch", None)
    return [] if watch is None else list(watch.attachments)


def lacks(function: str) -> bool:
    """Has the library no such function (yet)?"""
    from msdu import _abi

    return not hasattr(ctypes.CDLL(_abi.library().path), function)


def plain(script: str, *args: str) -> Callable[[int], Any]:
    """``python script args`` in a fork; returns what the script left in its RESULT."""

    def body(rank: int) -> Any:
        sys.argv[:] = [str(SCRIPTS / script), *args]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        _kept.append(runpy.run_path(sys.argv[0], run_name="__main__"))
        return _kept[-1].get("RESULT")

    return body


def attached(options: list[str], script: str, *args: str) -> Callable[[int], Any]:
    """``python -m msdu options script args`` in a fork."""

    def body(rank: int) -> Any:
        import msdu.__main__ as command

        sys.argv[:] = ["msdu", *options, str(SCRIPTS / script), *args]
        command.main()
        _kept.append(vars(sys.modules["__main__"]))
        return _kept[-1].get("RESULT")

    return body


def runs(folder: Path, body: Callable[[int], Any], ranks: int = 2) -> list[dict[str, Any]]:
    """Results of a script's ranks, the parameters at the very end, summaries, and the output."""

    def one(rank: int) -> dict[str, Any]:
        result = dict(body(rank))
        net = result.pop("net", None)
        if net is not None:
            result["state"] = {k: v.clone() for k, v in net.state_dict().items()}
        result["summaries"] = [one.summary() for one in attachments()]
        return result

    outcomes = launch(ranks, one, folder)
    return [{**value, "output": one.output} for value, one in zip(values(outcomes), outcomes)]
