#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `msdu bench overlap` and PyTorch's DDP (overlap_ddp.py) one after the other in one
laboratory run (bench/lab), over links of the same rate, for every profile and ratio wanted; keeps
the records (runs.py) and prints a table for each.

    sudo bench/overlap/overlap_table.py --ranks 4 --rate 1000 --scale 0.1 --profiles resnet50,vgg16
    bench/overlap/overlap_table.py --report

Needs what bench/lab needs, and torch for DDP (--no-ddp: without).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import runs

BENCH = Path(__file__).resolve().parents[1]
HEADERS, ETHERNET = 52, 14  # bytes: IPv4, TCP with timestamps; Ethernet

Record = dict[str, Any]


def payload_mbit(rate: float, mtu: int) -> float:
    """What headers leave of a rate in Mbit/s to data in full frames."""
    return rate * (mtu - HEADERS) / (mtu + ETHERNET)


def job_of(args: argparse.Namespace, profile: str, ratio: float, work: Path) -> str:
    """What each rank runs, for sh."""
    common = ["--profile", profile, "--scale", f"{args.scale:g}", "--ratio", f"{ratio:g}",
              "--link-mbit", f"{payload_mbit(args.rate, args.mtu):.3f}",
              "--steps", str(args.steps), "--warmup", str(args.warmup)]
    ours = [str(args.msdu), "bench", "overlap", *common, "--interval", str(args.interval),
            "--json", str(work / "ours.json")]
    if args.methods:
        ours += ["--methods", args.methods]
    if args.trace:
        ours += ["--trace", f"{args.trace}-%m-%r.json"]
    ddp = [sys.executable, str(BENCH / "overlap" / "overlap_ddp.py"), *common,
           "--json", str(work / "ddp.json")]
    commands = [ours] if args.no_ddp else [ours, ddp]
    return " && ".join(shlex.join(command) for command in commands)


def run_lab(args: argparse.Namespace, profile: str, ratio: float) -> list[Record]:
    """One run of the laboratory; its records. SystemExit with the laboratory's status."""
    with tempfile.TemporaryDirectory(prefix="msdu-overlap-") as folder:
        work = Path(folder)
        lab = [sys.executable, str(BENCH / "lab"), "--ranks", str(args.ranks),
               "--rate", f"{args.rate:g}mbit", "--mtu", str(args.mtu),
               "--", "sh", "-c", job_of(args, profile, ratio, work)]
        status = subprocess.run(lab, check=False).returncode
        if status != 0:
            raise SystemExit(status)
        records: list[Record] = []
        for name in ("ours.json", "ddp.json"):
            if (work / name).exists():
                records += json.loads((work / name).read_text(encoding="utf-8"))
    return complete(args, records)


def complete(args: argparse.Namespace, records: list[Record]) -> list[Record]:
    """Records with what all have in common; DDP's bound is that of the same bytes by ours."""
    exact = [r for r in records if r["method"] in ("blocking", "slices", "free")]
    common = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "rate_mbit": args.rate, "mtu": args.mtu, "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
    }
    for record in records:
        if record["method"] == "ddp" and exact:
            for field in ("bound_us", "machine", "cores", "commit", "version", "compute"):
                record.setdefault(field, exact[0].get(field))
        record.update(common)
    return records


def table_of(records: list[Record]) -> str:
    """Markdown: a row for each method; times by those of the bound and of DDP."""
    ddp = next((r["step_us"] for r in records if r["method"] == "ddp"), None)
    lines = ["| method | step ms | by bound | by DDP | exposed | link | MB a step | CPU ms |",
             "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for r in records:
        beside = f"{r['step_us'] / ddp:.3f}" if ddp else ""
        bound = f"{r['step_us'] / r['bound_us']:.3f}" if r.get("bound_us") else ""
        lines.append(
            f"| {r['method']} | {r['step_us'] / 1e3:.1f} | {bound} | {beside} | "
            f"{100 * r['exposed_share']:.1f} % | {r['link_use']:.3f} | {r['bytes'] / 1e6:.2f} | "
            f"{r['cpu_us'] / 1e3:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """Runs; 0, or the status of the first run that failed."""
    parser = argparse.ArgumentParser(description="Overlap of ours and of DDP over shaped links.")
    parser.add_argument("--out", type=Path, default=BENCH / "results" / "overlap")
    parser.add_argument("--msdu", type=Path, default=BENCH.parent / "build" / "bin" / "msdu")
    parser.add_argument("--profiles", default="resnet50", help="names joined by commas")
    parser.add_argument("--ratios", default="0.5,1,2", help="communication by computation")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1000, help="of each link, Mbit/s")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=48)
    parser.add_argument("--interval", type=int, default=4)
    parser.add_argument("--methods", help="of ours, joined by commas; default all")
    parser.add_argument("--no-ddp", action="store_true")
    parser.add_argument("--trace", type=Path, help="write timelines: TRACE-METHOD-RANK.json")
    parser.add_argument("--report", action="store_true", help="only print tables of what is there")
    parser.add_argument("--pack", action="store_true",
                        help="only move the records of new runs into the compressed file")
    args = parser.parse_args()
    if args.pack:
        runs.pack(args.out)
    if args.report:
        for run, records in runs.load_all(args.out).items():
            print(f"\n{run}\n\n{table_of(records)}\n")
    if args.pack or args.report:
        return 0
    for profile in args.profiles.split(","):
        for ratio in map(float, args.ratios.split(",")):
            records = run_lab(args, profile, ratio)
            path = runs.single(args.out, f"{Path(profile).stem}-{args.ranks}ranks-ratio{ratio:g}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
            print(f"\n{path.stem}\n\n{table_of(records)}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
