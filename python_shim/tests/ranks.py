# SPDX-License-Identifier: Apache-2.0
"""Run a function in several processes, as a launcher would: torchrun's variables and its store."""

from __future__ import annotations

import datetime
import io
import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, Callable

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before torch: the tests share the machine

import places
import torch
import torch.distributed as dist

# Processes are forked from one that has imported torch and done nothing else: quick, and no thread
# is lost on the way.
_spawner = multiprocessing.get_context("forkserver")
_spawner.set_forkserver_preload(
    # torch._dynamo is what the first optimizer of a process imports, in seconds
    ["torch", "torch.distributed", "torch._dynamo", "msdu._attach", "ranks", "nets"]
)


class RankFailed(AssertionError):
    """A rank raised: its number and its traceback."""


def _main(
    pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...], env: dict[str, str]
) -> None:
    os.environ.update(env)
    torch.set_num_threads(1)
    try:
        places.arrive()
        packed = io.BytesIO()  # by value: multiprocessing would share a tensor's memory with us
        torch.save(function(*args), packed)
        pipe.send((True, packed.getvalue()))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run(
    function: Callable[..., Any],
    *args: Any,
    ranks: int = 2,
    env: dict[str, str] | None = None,
    seconds: float = 100.0,
) -> list[Any]:
    """What ``function(*args)`` returns in each of ``ranks`` processes, by rank.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set; a store is served at that address, as
    torchrun's agent does it.

    Raises:
        RankFailed: a rank raised, died, or did not end in time. All are ended.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MSDU_DEADLINE_MS": "60000",
        **places.environment(),
        **(env or {}),
    }
    jobs = []
    for rank in range(ranks):
        ours, theirs = _spawner.Pipe(duplex=False)
        job = _spawner.Process(
            target=_main, args=(theirs, function, args, {**shared, "RANK": str(rank)})
        )
        job.start()
        theirs.close()
        jobs.append((job, ours))
    try:
        return _collect(jobs, time.monotonic() + seconds)
    finally:
        for job, _ in jobs:
            job.kill()
            job.join()
        del store


def _collect(jobs: list[Any], end: float) -> list[Any]:
    results, failures = [], []
    for rank, (job, pipe) in enumerate(jobs):
        is_there = pipe.poll(max(end - time.monotonic(), 0.0))
        try:
            is_good, value = pipe.recv() if is_there else (False, "it did not end in time")
        except EOFError:
            job.join()
            is_good, value = False, f"it died with exit code {job.exitcode}"
        if is_good:
            results.append(torch.load(io.BytesIO(value), "cpu", weights_only=False))
        else:
            failures.append(f"rank {rank}: {value}")
    for job, _ in jobs:
        job.join(max(end - time.monotonic(), 0.0) if not failures else 0.0)
    if failures:
        raise RankFailed("\n".join(failures))
    return results


def join_torch() -> tuple[int, int]:
    """Make torch's process group over gloo; rank and size."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    return dist.get_rank(), dist.get_world_size()


def rank() -> int:
    """Of this process."""
    return int(os.environ["RANK"])
