#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What losses cost a job whose ranks come and go (setting ranks_least): goodput beside the same job
undisturbed, and how long the group takes to train on.

    python3 bench/lab --ranks 4 --rate 1gbit -- build/venv/bin/python bench/membership/goodput.py \
        --every 30 --seconds 150 --out DIR
    bench/membership/goodput.py --report DIR

In each rank's network a supervisor keeps a worker alive, as torchrun with --max-restarts does with
one process. Every so many seconds the supervisor of one rank, in turn, kills its worker and starts
another one after `--away` seconds. Workers train a model of `--parameters` floats with
SGD; a step computes by sleeping, so that ranks that share processors disturb each other little. Goodput
is steps that counted, of all workers together, per second, beside the number with --every 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


def train(args: argparse.Namespace, log: Path) -> None:
    """A worker; a line for its start, for each step, and for each change of the group."""
    import torch

    sys.path.insert(0, str(ROOT / "python_shim"))
    os.environ.setdefault("MSDU_LIBRARY", str(ROOT / "build/lib/libmsdu.so"))
    os.environ.setdefault("MSDU_MODULE_PATH", str(ROOT / "build/lib"))
    import msdu

    torch.set_num_threads(1)
    model = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.zeros(args.parameters // 16)) for _ in range(16)]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    began = time.time()
    with log.open("a", encoding="utf-8") as out:

        def say(**row: Any) -> None:
            out.write(json.dumps({"time": time.time(), "rank": args.rank, **row}) + "\n")
            out.flush()

        run = msdu.attach(model, optimizer, ranks_least=1, interval=args.interval)
        say(what="joined", seconds=time.time() - began, epoch=run.summary().epoch)
        epoch = run.summary().epoch
        while time.time() < args.until:
            time.sleep(args.compute)
            optimizer.zero_grad(set_to_none=False)
            sum(p.sum() for p in model).backward()
            before = run.summary().steps
            optimizer.step()
            now = run.summary()
            if now.epoch != epoch:
                epoch = now.epoch
                say(what="regrouped", epoch=epoch, ranks=now.ranks)
            elif now.steps > before:
                say(what="step", step=now.steps, ranks=now.ranks, h=now.interval_steps)
        run.close()


def supervise(args: argparse.Namespace) -> None:
    """A worker at any time, but for the time after it was killed."""
    words = [sys.executable, __file__, "--worker", *sys.argv[1:], "--until", str(args.until)]
    log = args.out / f"rank{args.rank}.jsonl"
    began = time.time()
    due = began + args.every * (1 + args.rank) if args.every else float("inf")
    worker = subprocess.Popen(words)
    while time.time() < args.until:
        time.sleep(0.05)
        if time.time() >= due:
            due += args.every * args.ranks
            worker.kill()
            worker.wait()
            with log.open("a", encoding="utf-8") as out:
                row = {"time": time.time(), "rank": args.rank, "what": "killed"}
                out.write(json.dumps(row) + "\n")
            time.sleep(args.away)
            worker = subprocess.Popen(words)
        elif worker.poll() is not None and time.time() < args.until:
            raise SystemExit(f"rank {args.rank}: its worker ended with {worker.returncode}")
    try:
        worker.wait(30)
    except subprocess.TimeoutExpired:
        worker.kill()


def rows_of(folder: Path) -> list[Row]:
    """All rows of a run, by time."""
    rows: list[Row] = []
    for path in sorted(folder.glob("rank*.jsonl")):
        rows += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: row["time"])


def median(values: list[float]) -> str:
    """Median and largest."""
    return f"{statistics.median(values):.2f} s ({max(values):.2f})" if values else "-"


def report(folder: Path) -> None:
    """What a run came to."""
    rows = rows_of(folder)
    steps = [row for row in rows if row["what"] == "step"]
    first = next(row["time"] for row in rows if row["what"] == "joined") + 5
    counted = [row for row in steps if row["time"] >= first]
    span = counted[-1]["time"] - first
    losses = [row for row in rows if row["what"] == "killed"]
    stalls, joins = [], []
    for loss in losses:
        later = [r["time"] for r in steps if r["time"] > loss["time"] and r["rank"] != loss["rank"]]
        stalls += [later[0] - loss["time"]] if later else []
    for row in rows:
        if row["what"] == "joined" and row["epoch"] > 1:
            joins.append(row["seconds"])
    print(f"{folder}: {len(counted) / span:.2f} steps of ranks per second over {span:.0f} s, "
          f"{len(losses)} losses; median (largest) from a loss to the others' next step "
          f"{median(stalls)}, from a newcomer's attach() to its end {median(joins)}")


def main() -> int:
    """0."""
    parser = argparse.ArgumentParser(description="Goodput of a job whose ranks come and go.")
    parser.add_argument("--every", type=float, default=30, help="seconds between losses; 0: none")
    parser.add_argument("--away", type=float, default=5, help="seconds until a worker is back (5)")
    parser.add_argument("--seconds", type=float, default=150, help="of the run (150)")
    parser.add_argument("--parameters", type=int, default=2_500_000, help="(2.5 million)")
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of a step (0.1)")
    parser.add_argument("--interval", default="divergence", help="policy (divergence)")
    parser.add_argument("--out", type=Path, help="folder of the run's rows")
    parser.add_argument("--report", type=Path, help="only print what a folder has")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.report is not None:
        report(args.report)
        return 0
    if args.out is None:
        parser.error("--out is missing")
    args.rank = int(os.environ["RANK"])
    args.ranks = int(os.environ["WORLD_SIZE"])
    if args.worker:
        train(args, args.out / f"rank{args.rank}.jsonl")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["MSDU_RENDEZVOUS"] = f"file://{args.out.resolve()}"  # its rank 0 may be any host
    args.until = time.time() + args.seconds
    supervise(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
