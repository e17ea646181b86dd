# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a run, on loopback or in bench/lab, and makes the record of it."""
from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from . import data, record
from .rank import Options

BENCH = pathlib.Path(__file__).resolve().parents[1]


class RunFailed(Exception):
    """A rank failed; the text is the end of what it said."""


def flat(settings: dict[str, Any]) -> str:
    """Settings as one line of text, sorted: "interval=fixed wire=int4"."""
    return " ".join(f"{name}={settings[name]}" for name in sorted(settings))


def identity_of(options: Options, ranks: int, rate: float, purpose: str) -> record.Record:
    """The fields that say which run this is, with its key."""
    fields = {name: getattr(options, name) for name in (
        "model", "dataset", "method", "optimizer", "seed", "lr", "weight_decay", "warmup",
        "batch", "epochs", "evaluations", "test_samples", "device")}
    fields |= {"purpose": purpose, "settings": flat(options.settings), "size": flat(options.size),
               "ranks": ranks, "rate_mbit": float(rate), "samples_wanted": options.samples,
               "steps_wanted": options.steps}
    return fields | {"key": record.key_of(fields)}


def _rank_command(options: Options, result: pathlib.Path) -> list[str]:
    text = json.dumps({"options": dataclasses.asdict(options), "result": str(result)})
    program = "uneven.py" if options.uneven else "converge.py" if options.converge else "train.py"
    return [sys.executable, str(BENCH / "training" / program), "--rank-of", text]


def _environment(extra: dict[str, str]) -> dict[str, str]:
    """The caller's environment without other launchers' ranks; one thread per rank."""
    kept = {name: value for name, value in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **extra}


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Stop what still runs, with everything it started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until all ended well. Raises RunFailed for the first that did not, or for the time."""
    deadline = time.monotonic() + seconds
    while True:
        codes = [process.poll() for process in processes]
        failed = [(i, code) for i, code in enumerate(codes) if code]
        if failed:
            raise RunFailed(f"process {failed[0][0]} ended with status {failed[0][1]}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise RunFailed(f"not finished after {seconds:.0f} s")
        time.sleep(0.05)


def _said(work: pathlib.Path) -> str:
    """The end of what each process said, as far as it said anything."""
    texts = [file.read_text(encoding="utf-8", errors="replace").strip()
             for file in sorted(work.glob("*log"))]
    return "\n".join(text[-2000:] for text in texts if text)


def _run(commands: list[tuple[list[str], dict[str, str]]], work: pathlib.Path, seconds: float
         ) -> None:
    """Run commands at the same time, each with its environment; their output goes to work/log."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with (work / "log").open("wb") as output:
            for command, environment in commands:
                processes.append(subprocess.Popen(
                    command, env=environment, stdout=output, stderr=output,
                    start_new_session=True))
            _wait(processes, seconds)
    except RunFailed as failure:
        raise RunFailed(f"{failure}\n{_said(work)}") from None
    finally:
        _end(processes)


def _on_loopback(options: Options, ranks: int, work: pathlib.Path, seconds: float) -> None:
    """All ranks on this machine, over loopback."""
    import torch.distributed as dist

    # The launcher owns the store, so that its port is bound before any rank asks for it.
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
              "GLOO_SOCKET_IFNAME": "lo"}
    command = _rank_command(options, work / "result.json")
    # NCCL refuses a second rank on a GPU, unless it seems to be another host's
    _run([(command, _environment({**common, "RANK": str(rank), "LOCAL_RANK": str(rank),
                                  "NCCL_HOSTID": f"msdu-{rank}"}))
          for rank in range(ranks)], work, seconds)


def _in_lab(options: Options, ranks: int, per_host: int, rate: float, work: pathlib.Path,
            seconds: float) -> None:
    """Hosts are network namespaces of their own, their links shaped to rate Mbit/s (root)."""
    shape = ["--rate", f"{rate:g}mbit"] if rate > 0 else []
    hosts = ["--hosts", str(ranks // per_host), "--per-host", str(per_host)]
    command = [sys.executable, str(BENCH / "lab"), *hosts, *shape,
               "--output-dir", str(work), "--", *_rank_command(options, work / "result.json")]
    _run([(command, _environment({}))], work, seconds)


def run(options: Options, ranks: int, rate: float, purpose: str = "run",
        seconds: float = 3600.0, per_host: int = 1) -> record.Record:
    """One run and its record.

    rate     Mbit/s of every rank's link; 0: loopback; -1: links of bench/lab, not shaped
    purpose  why: "accuracy", "search", "step", "whole" or "run"
    seconds  longest time it may take
    per_host ranks of a host of bench/lab
    Raises RunFailed, data.MissingData.
    """
    data.load(options.dataset, options.data, options.cache)  # decode once, before the ranks do
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    machine = record.machine()
    with tempfile.TemporaryDirectory(prefix="msdu-train-") as folder:
        work = pathlib.Path(folder)
        if options.converge:  # ranks are threads
            _run([(_rank_command(options, work / "result.json"), _environment({}))], work, seconds)
        elif rate:
            _in_lab(options, ranks, per_host, rate, work, seconds)
        else:
            _on_loopback(options, ranks, work, seconds)
        result = json.loads((work / "result.json").read_text(encoding="utf-8"))
    return {"version": record.VERSION, **identity_of(options, ranks, rate, purpose),
            "threads": options.threads, **result, **machine, "started": started}
