# SPDX-License-Identifier: Apache-2.0
"""Bytes and accuracy of MPI trainers that nobody changed, with and without `msdu run`.

    sudo python3 bench/attach/attach_mpi.py --data DIR [--seeds 3] [--epochs 45] [--json FILE]
    python3 bench/attach/attach_mpi.py --report FILE...

Runs examples/mpi_trainer.c and .py with 4 ranks of Open MPI, each on a host of its own in the
laboratory, over TCP, and counts what its link carried: payload, headers, and mpirun's own messages.
A record is kept for each run, and a run that has one is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RANKS = 4
BATCH = 8  # of the trainers
# What a user says of the trainer's optimizer; nothing of Adam. The model's number of tensors lets
# the library begin soon. Only bytes are compared, so it is not to measure whether it gains time.
ALWAYS = {"MSDU_ATTACH": "always", "MSDU_ATTACH_TENSORS": "6"}
SETTINGS: dict[str, dict[str, str]] = {
    "sgd": {
        "MSDU_OPTIMIZER": "sgd",
        "MSDU_MOMENTUM": "0.9",
        "MSDU_INTERVAL": "fixed",
        "MSDU_INTERVAL_STEPS": "4",
        "MSDU_WIRE": "int4",
        **ALWAYS,
    },
    "adam": {"MSDU_WIRE_BLOCK": "1024", **ALWAYS},
}
AIMS = {"sgd": 16.0, "adam": 7.5}


def trainer(kind: str, build: Path, python: str) -> list[str]:
    """Command of a trainer, without its arguments."""
    if kind == "c":
        return [str(build / "bin/mpi_trainer_openmpi")]
    return [python, "-B", str(ROOT / "examples/mpi_trainer.py")]


def command(
    given: argparse.Namespace, kind: str, optimizer: str, seed: int, attached: bool
) -> list[str]:
    """What mpirun is asked for."""
    msdu = [str(given.build / "bin/msdu"), "run", "--"] if attached else []
    words = [str(given.data), optimizer, str(seed), str(given.epochs)]
    return [given.mpirun, *msdu, *trainer(kind, given.build, given.python), *words]


def in_laboratory(words: list[str], environment: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Run mpirun's command; returns what rank 0's host printed, and the laboratory's report."""
    with tempfile.TemporaryDirectory() as name:
        folder, report = Path(name) / "hosts", Path(name) / "report.json"
        folder.mkdir()
        lab = [sys.executable, "-B", str(ROOT / "bench/lab"), "--ranks", str(RANKS)]
        start = [
            "--json",
            str(report),
            "--",
            sys.executable,
            "-B",
            str(ROOT / "bench/attach/lab_mpirun.py"),
        ]
        done = subprocess.run(
            [*lab, *start, str(folder), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=environment,
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}")
        return done.stdout, json.loads(report.read_text())


def run(
    given: argparse.Namespace, kind: str, optimizer: str, seed: int, attached: bool
) -> dict[str, Any]:
    """One run, as a record."""
    settings = SETTINGS[optimizer] if attached else {}
    if optimizer == "sgd" and attached:
        settings = {**settings, "MSDU_TOTAL_STEPS": str(given.epochs * given.steps)}
    environment = {n: v for n, v in os.environ.items() if "MSDU" not in n}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **settings}
    words = command(given, kind, optimizer, seed, attached)
    printed, report = in_laboratory(words, environment)
    sent = [int(rank["tx_bytes"]) for rank in report["runs"][0]["per_rank"]]
    accuracy = re.search(r"test accuracy ([0-9.]+)", printed)
    if accuracy is None:
        sys.exit(f"{' '.join(words)}:\n{printed}")
    return {
        "trainer": kind,
        "optimizer": optimizer,
        "seed": seed,
        "attached": attached,
        "epochs": given.epochs,
        "ranks": RANKS,
        "settings": settings,
        "accuracy": float(accuracy.group(1)),
        "bytes_per_rank": sum(sent) // RANKS,
        "bytes_of_ranks": sent,
        **{name: report[name] for name in ("kernel", "cores", "commit")},
        "told": [line for line in printed.splitlines() if line.startswith("msdu")],
        "command": " ".join(Path(word).name if word.startswith("/") else word for word in words),
    }


def row(records: list[dict[str, Any]], kind: str, optimizer: str) -> str | None:
    """A line of the table, of the seeds that ran both ways."""
    mine = [r for r in records if (r["trainer"], r["optimizer"]) == (kind, optimizer)]
    plain = {r["seed"]: r for r in mine if not r["attached"]}
    attached = {r["seed"]: r for r in mine if r["attached"]}
    seeds = sorted(plain.keys() & attached.keys())
    if not seeds:
        return None
    ratios = [plain[s]["bytes_per_rank"] / attached[s]["bytes_per_rank"] for s in seeds]
    sent = [statistics.mean(x[s]["bytes_per_rank"] for s in seeds) / 1e6 for x in (plain, attached)]
    right = [statistics.mean(x[s]["accuracy"] for s in seeds) for x in (plain, attached)]
    name = {"c": "C", "mpi4py": "mpi4py"}[kind]
    return (
        f"| {name} | {optimizer} | {len(seeds)} | {right[0]:.2f} | {right[1]:.2f} | {sent[0]:.1f} "
        f"| {sent[1]:.1f} | {min(ratios):.2f} | {AIMS[optimizer]:g} |"
    )


def table(records: list[dict[str, Any]]) -> str:
    """Both trainers, both optimizers; ratios are the smallest over seeds."""
    lines = [
        "| trainer | optimizer | seeds | accuracy % | attached | MB a rank | attached "
        + "| times fewer | aim |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [row(records, kind, optimizer) for kind in ("c", "mpi4py") for optimizer in SETTINGS]
    return "\n".join(lines + [line for line in rows if line is not None])


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs that have no record yet, within --runs."""
    records: list[dict[str, Any]] = []
    if given.json is not None and given.json.exists():
        records = json.loads(given.json.read_text())
    had = {(r["trainer"], r["optimizer"], r["seed"], r["attached"]) for r in records}
    keys = [
        (kind, optimizer, seed, attached)
        for seed in range(1, given.seeds + 1)
        for kind in given.trainers
        for optimizer in SETTINGS
        for attached in (False, True)
    ]
    for key in [key for key in keys if key not in had][: given.runs]:
        records.append(run(given, *key))
        print(*key, records[-1]["accuracy"], records[-1]["bytes_per_rank"], flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps(records, indent=1) + "\n")
    return records


def main() -> None:
    """Measure, or only report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of idx files")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--mpirun", default="/usr/bin/mpirun.openmpi")
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has mpi4py")
    parser.add_argument("--trainers", nargs="+", choices=("c", "mpi4py"), default=["c", "mpi4py"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=45)
    parser.add_argument("--runs", type=int, default=1000, help="at most so many now")
    parser.add_argument("--json", type=Path, help="records, kept and added to")
    parser.add_argument("--report", type=Path, nargs="+", help="only the table, of these records")
    given = parser.parse_args()
    if given.report is not None:
        print(table([r for file in given.report for r in json.loads(file.read_text())]))
        return
    if given.data is None:
        parser.error("--data is needed")
    images = (given.data / "train-images-idx3-ubyte").read_bytes()[4:8]
    given.steps = int.from_bytes(images, "big") // (BATCH * RANKS)
    print(table(measure(given)))


if __name__ == "__main__":
    main()
