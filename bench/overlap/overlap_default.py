#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is the default ever slower than plain float32, or much slower than the best fixed choice? Runs
`msdu bench overlap` over the loopback and over shaped links (bench/lab), for ratios of
communication to computation and numbers of ranks; keeps the records (runs.py) and prints a row for
each case.

    sudo bench/overlap/overlap_default.py --budget 30
    bench/overlap/overlap_default.py --report

The model is made so large that all cases fit the budget; those that do not are named and left out.
A row is good where a step of the default takes at most 1 / 0.98 of that in plain float32 and 1.1 of
the best fixed one. Status 1 with --check if one is not. Shaped links need what bench/lab needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))

import overlap_table
import runs

BENCH = Path(__file__).resolve().parents[1]
PLAIN, DEFAULT = "slices", "defaults"  # both give gradients out by whole rounds
FIXED = ("slices", "int8", "int4", "local", "local-delayed", "local-streamed")
PLAIN_MOST, BEST_MOST = 1 / 0.98, 1.1
STEPS, WARMUP, WARMUP_DEFAULT = 16, 48, 96  # sizes of slices are tuned, formats tried and judged
SHARE = 0.9  # of its part of the time left, that a case may take
RUN_S = 6  # contexts, connections, the laboratory
PARAMETERS = 25.6e6  # of the profile, at scale 1
SCALES = (0.0005, 0.25)  # a model of layers still; memory of four ranks
MTU = 9000
LOOPBACK_MBIT = 10000  # for the size only: it is measured

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of the table."""

    link: str  # "loopback", or a rate in Mbit/s
    ranks: int
    ratio: float

    @property
    def rate(self) -> Optional[float]:
        """In Mbit/s; none: over the loopback."""
        return None if self.link == "loopback" else float(self.link)

    @property
    def name(self) -> str:
        """Of the run in the records."""
        return f"default-{self.link}-{self.ranks}ranks-ratio{self.ratio:g}"


def is_link(text: str) -> bool:
    """Is it the loopback, or a rate in Mbit/s?"""
    try:
        return text == "loopback" or 0 < float(text) < math.inf
    except ValueError:
        return False


def cases(args: argparse.Namespace) -> list[Case]:
    """All of the grid, in an order in which the first ones say most."""
    return [Case(link, ranks, ratio)
            for ranks in map(int, args.ranks.split(","))
            for ratio in map(float, args.ratios.split(","))
            for link in args.links.split(",")]


def step_count(methods: int) -> int:
    """Steps of a case, blocking ones included, which the bench compares with."""
    return (methods + 1) * (WARMUP + STEPS) + WARMUP_DEFAULT + STEPS


def scale_of(case: Case, seconds: float, methods: int) -> float:
    """Of the model, so that a case takes so long if no method is faster than float32."""
    step = max(seconds - 2 * RUN_S, 1) / step_count(methods)
    link = step / (1 + 1 / case.ratio)
    ring = 2 * (case.ranks - 1) / case.ranks * 4 * PARAMETERS  # bytes of scale 1
    scale = link * (case.rate or LOOPBACK_MBIT) * 1e6 / 8 / ring
    return min(max(scale, SCALES[0]), SCALES[1])


def seconds_of(case: Case, scale: float, methods: int) -> float:
    """What a case takes at most, about."""
    ring = 2 * (case.ranks - 1) / case.ranks * 4 * PARAMETERS * scale
    link = ring * 8 / ((case.rate or LOOPBACK_MBIT) * 1e6)
    return 2 * RUN_S + step_count(methods) * link * (1 + 1 / case.ratio)


def bench_of(args: argparse.Namespace, case: Case, methods: str, scale: float,
             mbit: Optional[float]) -> list[str]:
    """A command; without --json and ranks."""
    command = [str(args.msdu), "bench", "overlap", "--profile", args.profile,
               "--scale", f"{scale:.4g}", "--ratio", f"{case.ratio:g}", "--methods", methods,
               "--steps", str(STEPS), "--interval", str(args.interval),
               "--warmup", str(WARMUP_DEFAULT if methods == DEFAULT else WARMUP)]
    command += ["--spin"] if args.spin else []
    return command + (["--link-mbit", f"{mbit:.3f}"] if mbit else [])


def load(path: Path) -> list[Record]:
    """Records of a bench."""
    records: list[Record] = json.loads(path.read_text(encoding="utf-8"))
    return records


def run_loopback(args: argparse.Namespace, case: Case, scale: float, work: Path) -> list[Record]:
    """Both benches; the second with the rate that the first one measured."""
    records: list[Record] = []
    for methods in (args.methods, DEFAULT):
        mbit = records[0]["link_mbit"] if records else None
        command = bench_of(args, case, methods, scale, mbit)
        subprocess.run([*command, "--ranks", str(case.ranks), "--json", str(work / "ours.json")],
                       check=True, stdout=subprocess.DEVNULL)
        records += load(work / "ours.json")
    return records


def run_lab(args: argparse.Namespace, case: Case, scale: float, work: Path) -> list[Record]:
    """Both benches in one run of the laboratory."""
    assert case.rate is not None
    mbit = overlap_table.payload_mbit(case.rate, MTU)
    job = " && ".join(
        shlex.join([*bench_of(args, case, methods, scale, mbit),
                    "--json", str(work / f"{methods == DEFAULT}.json")])
        for methods in (args.methods, DEFAULT))
    subprocess.run([sys.executable, str(BENCH / "lab"), "--ranks", str(case.ranks),
                    "--rate", f"{case.rate:g}mbit", "--mtu", str(MTU), "--", "sh", "-c", job],
                   check=True, stdout=subprocess.DEVNULL)
    return load(work / "False.json") + load(work / "True.json")


def measure(args: argparse.Namespace, case: Case, scale: float) -> list[Record]:
    """The records of a case, as runs.py keeps them. CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="msdu-default-") as folder:
        run = run_loopback if case.rate is None else run_lab
        records = run(args, case, scale, Path(folder))
    common = argparse.Namespace(rate=case.rate, mtu=MTU if case.rate else None)
    return overlap_table.complete(common, records)


def row_of(name: str, records: list[Record]) -> tuple[str, bool]:
    """A line of the table, and whether it is good."""
    steps = {r["method"]: r["step_us"] for r in records}
    default = next(r for r in records if r["method"] == DEFAULT)
    best = min((m for m in FIXED if m in steps), key=lambda m: steps[m])
    by_plain = default["step_us"] / steps[PLAIN]
    by_best = default["step_us"] / steps[best]
    is_good = by_plain <= PLAIN_MOST and by_best <= BEST_MOST
    return (f"| {name.removeprefix('default-')} | {steps[PLAIN] / 1e3:.1f} | {by_plain:.3f} | "
            f"{by_best:.3f} | {best} | h {default['interval']:g}, {default['wire']} | "
            f"{'' if is_good else 'no'} |"), is_good


HEAD = ("| case | float32 ms | default / float32 | default / best fixed | best fixed | default at"
        " the end | good |\n| --- | ---: | ---: | ---: | --- | --- | --- |")


def report(found: dict[str, list[Record]]) -> bool:
    """Print the table; are all rows good?"""
    print(HEAD)
    are_good = True
    for name, records in sorted(found.items(), key=lambda run: natural(run[0])):
        row, is_good = row_of(name, records)
        are_good = are_good and is_good
        print(row)
    return are_good


def natural(name: str) -> list[Any]:
    """A key by which numbers are in order."""
    return [(0, float(part), "") if re.fullmatch(r"[0-9.]+", part) else (1, 0, part)
            for part in re.split(r"([0-9.]+)", name)]


def run_all(args: argparse.Namespace) -> tuple[dict[str, list[Record]], list[str]]:
    """What was measured, and what the budget did not allow."""
    grid = cases(args)
    methods = len(args.methods.split(","))
    end = time.monotonic() + 60 * args.budget
    found: dict[str, list[Record]] = {}
    missing: list[str] = []
    for i, case in enumerate(grid):
        left = end - time.monotonic()
        scale = scale_of(case, SHARE * left / (len(grid) - i), methods)
        if seconds_of(case, scale, methods) > left:
            missing.append(case.name)
            continue
        began = time.monotonic()
        found[case.name] = measure(args, case, scale)
        path = runs.single(args.out, case.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found[case.name], indent=1) + "\n", encoding="utf-8")
        print(f"{row_of(case.name, found[case.name])[0]} {time.monotonic() - began:.0f} s",
              file=sys.stderr, flush=True)
    return found, missing


def main() -> int:
    """0; 1: a row is not good, with --check, or a case was left out."""
    parser = argparse.ArgumentParser(description="The default beside float32 and fixed choices.")
    parser.add_argument("--budget", type=float, default=30, help="minutes for all cases (30)")
    parser.add_argument("--links", default="loopback,10000,1000,200,20",
                        help="loopback or Mbit/s, joined by commas")
    parser.add_argument("--ratios", default="1,4,0.25,16", help="communication by computation")
    parser.add_argument("--ranks", default="2,4", help="numbers joined by commas")
    parser.add_argument("--methods", default=",".join(FIXED), help="fixed ones")
    parser.add_argument("--interval", type=int, default=4, help="of fixed local steps")
    parser.add_argument("--spin", action="store_true", help="computing keeps a core busy")
    parser.add_argument("--profile", default="resnet50")
    parser.add_argument("--out", type=Path, default=BENCH / "results" / "overlap" / "default")
    parser.add_argument("--msdu", type=Path, default=BENCH.parent / "build" / "bin" / "msdu")
    parser.add_argument("--check", action="store_true", help="status 1 if a row is not good")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    parser.add_argument("--no-pack", action="store_true", help="leave new records in single files")
    args = parser.parse_args()
    if not set(args.methods.split(",")) <= set(FIXED) or PLAIN not in args.methods.split(","):
        parser.error(f"--methods are of {','.join(FIXED)}, with {PLAIN}")
    if not all(map(is_link, args.links.split(","))):
        parser.error("--links are loopback or rates in Mbit/s")
    missing: list[str] = []
    if args.report:
        found = {run: records for run, records in runs.load_all(args.out).items()
                 if run.startswith("default-")}
    else:
        try:
            found, missing = run_all(args)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"overlap_default: {shlex.join(error.cmd)}: status "
                             f"{error.returncode}") from None
        if not args.no_pack:
            runs.pack(args.out)
    are_good = report(found)
    for name in missing:
        print(f"left out, no time: {name}")
    return 1 if missing or (args.check and not are_good) else 0


if __name__ == "__main__":
    sys.exit(main())
