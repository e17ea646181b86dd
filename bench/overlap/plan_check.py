#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what `msdu plan` predicts against what `msdu bench overlap` measured: the same profile,
ratio, ranks, rate and method, record by record; prints the errors and draws them.

    bench/overlap/plan_check.py bench/results/overlap/records.jsonl.xz
    sudo bench/overlap/plan_check.py --measure --profiles resnet50,vgg16 --ratios 0.5,1,2

Files are those of overlap_table.py, packed or of single runs; --measure runs that first. The prediction knows nothing of the
measured steps: rate and ratio are those of the run, and the latency of a message is half of what
one exchange of an almost empty slice took before it (field exchange_us), or --latency-us. The
processor time of such a slice (slice_cpu_us) counts times ranks by cores. DDP's records
are left out, since it is not simulated. Ends with status 1 if the median error is above --most.
Needs matplotlib for the drawing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))

import runs

BENCH = Path(__file__).resolve().parents[1]
OUT = BENCH / "results" / "overlap"
RENAMED = {"ternary": "int2"}  # methods of older records
HOPS = 2  # messages that an exchange is deep

Record = dict[str, Any]


def measure(args: argparse.Namespace) -> list[Path]:
    """Run overlap_table.py; the files it wrote. SystemExit with its status."""
    table = [sys.executable, str(BENCH / "overlap" / "overlap_table.py"), "--out", str(args.out),
             "--msdu", str(args.msdu), "--profiles", args.profiles, "--ratios", args.ratios,
             "--ranks", str(args.ranks), "--rate", f"{args.rate:g}", "--mtu", str(args.mtu),
             "--scale", f"{args.scale:g}", "--steps", str(args.steps),
             "--warmup", str(args.warmup), "--no-ddp"]
    if args.methods:
        table += ["--methods", args.methods]
    status = subprocess.run(table, check=False).returncode
    if status != 0:
        raise SystemExit(status)
    return [runs.single(args.out, f"{Path(profile).stem}-{args.ranks}ranks-ratio{float(ratio):g}")
            for profile in args.profiles.split(",") for ratio in args.ratios.split(",")]


def load(path: Path) -> dict[str, list[Record]]:
    """Our records of a file, by run. SystemExit with one line if a run has none."""
    try:
        found = {run: [r for r in records if r["name"] == "overlap" and r["method"] != "ddp"]
                 for run, records in runs.load(path).items()}
        if not all(found.values()):
            raise ValueError("no record of msdu bench overlap")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"plan_check: {path}: {error}") from None


def latency_us(args: argparse.Namespace, record: Record) -> float:
    """Of one message in the run of a record."""
    if args.latency_us is not None:
        return float(args.latency_us)
    if "exchange_us" not in record:
        raise SystemExit("plan_check: records without exchange_us need --latency-us")
    return float(record["exchange_us"]) / HOPS


def slice_us(record: Record) -> float:
    """Processor time of a slice; ranks of the laboratory share its cores."""
    sharing = max(1.0, float(record["ranks"]) / float(record["cores"]))
    return float(record.get("slice_cpu_us", 0)) * sharing


def profile_of(args: argparse.Namespace, name: str) -> str:
    """Name or file of the profile that a record names."""
    given = {Path(path).stem: path for path in args.profiles.split(",")}
    return given.get(name, name)


def predict(args: argparse.Namespace, records: list[Record]) -> dict[str, Record]:
    """Predictions for the records of one run, by method."""
    first = records[0]
    local = [r for r in records if r["method"].startswith("local")]
    interval = int(local[0]["interval"]) if local else 4
    command = [str(args.msdu), "plan", "--json", "--up-to", "0",
               "--profile", profile_of(args, first["profile"]), "--scale", f"{first['scale']:.17g}",
               "--ratio", f"{first['comm_comp_ratio']:.17g}", "--ranks", str(first["ranks"]),
               "--rate-mbit", f"{first['link_mbit']:.17g}",
               "--latency-us", f"{latency_us(args, first):.3f}",
               "--slice-us", f"{slice_us(first):.3f}", "--interval", str(interval)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"plan_check: {done.stderr.strip()}")
    answers: dict[str, Record] = {}
    for record in json.loads(done.stdout):
        is_controller = record["name"] == "controller"
        if is_controller:  # the bench measures it while it still moves
            record["step_us"] = record["bench_step_us"]
            record["bytes"] = record["bench_bytes"]
        answers[record["method"]] = record
    return answers


def compare(args: argparse.Namespace, run: str, records: list[Record]) -> list[Record]:
    """A row for each method of a run."""
    answers = predict(args, records)
    rows = []
    for measured in records:
        predicted = answers.get(RENAMED.get(measured["method"], measured["method"]))
        if predicted is None:
            continue
        rows.append({
            "name": "plan_check", "run": run, "profile": measured["profile"],
            "method": measured["method"], "ranks": measured["ranks"],
            "comm_comp_ratio": measured["comm_comp_ratio"], "link_mbit": measured["link_mbit"],
            "latency_us": latency_us(args, records[0]), "slice_us": slice_us(records[0]),
            "compute_us": measured["compute_us"],
            "measured_us": measured["step_us"], "predicted_us": predicted["step_us"],
            "error": predicted["step_us"] / measured["step_us"] - 1,
            "measured_bytes": measured["bytes"], "predicted_bytes": predicted["bytes"],
            "load": measured.get("load"), "commit": measured.get("commit"),
        })
    return rows


def median_of(rows: list[Record]) -> float:
    """Median of the errors' sizes."""
    return statistics.median(abs(row["error"]) for row in rows)


def table_of(rows: list[Record]) -> str:
    """A line for each method: runs, median and largest error, signed."""
    lines = ["| method | runs | median error | largest |", "| --- | ---: | ---: | ---: |"]
    for method in dict.fromkeys(row["method"] for row in rows):
        errors = [row["error"] for row in rows if row["method"] == method]
        largest = max(errors, key=abs)
        lines.append(f"| {method} | {len(errors)} | {100 * statistics.median(errors):+.1f} % | "
                     f"{100 * largest:+.1f} % |")
    lines.append(f"| all, size of the error | {len(rows)} | {100 * median_of(rows):.1f} % | "
                 f"{100 * max(abs(row['error']) for row in rows):.1f} % |")
    return "\n".join(lines)


def draw(rows: list[Record], path: Path) -> None:
    """Predicted over measured, both by computing, and the errors by method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "msdu"
    methods = list(dict.fromkeys(row["method"] for row in rows))
    colors = pyplot.get_cmap("tab20").colors
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
    for i, method in enumerate(methods):
        chosen = [row for row in rows if row["method"] == method]
        left.plot([r["measured_us"] / r["compute_us"] for r in chosen],
                  [r["predicted_us"] / r["compute_us"] for r in chosen], "o", label=method,
                  color=colors[i % len(colors)])
        right.plot([100 * r["error"] for r in chosen], [i] * len(chosen), "o",
                   color=colors[i % len(colors)])
    ends = [0.95 * min(r["measured_us"] / r["compute_us"] for r in rows),
            1.05 * max(r["measured_us"] / r["compute_us"] for r in rows)]
    left.plot(ends, ends, color="gray", linewidth=0.8)
    left.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color="gray",
                      alpha=0.15, linewidth=0)
    left.set(xscale="log", yscale="log", xlabel="step measured / computing",
             ylabel="step predicted / computing")
    left.legend(fontsize="small")
    right.axvspan(-10, 10, color="gray", alpha=0.15, linewidth=0)
    right.axvline(0, color="gray", linewidth=0.8)
    right.set_yticks(range(len(methods)), methods)
    right.invert_yaxis()
    right.set_xlabel("error of the prediction, %")
    figure.suptitle(f"{len(rows)} runs, median error {100 * median_of(rows):.1f} %")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main(given: Optional[list[str]] = None) -> int:
    """Compare; 1 if the median error is above the limit."""
    parser = argparse.ArgumentParser(description="Predictions of msdu plan against measured runs.")
    parser.add_argument("files", type=Path, nargs="*", help="records of overlap_table.py")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--msdu", type=Path, default=BENCH.parent / "build" / "bin" / "msdu")
    parser.add_argument("--measure", action="store_true", help="run overlap_table.py first")
    parser.add_argument("--profiles", default="resnet50,vgg16,bert-large,gpt2-124m")
    parser.add_argument("--ratios", default="0.5,1,2")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=12)
    parser.add_argument("--methods", help="joined by commas; default all")
    parser.add_argument("--latency-us", type=float, help="of a message, instead of the measured")
    parser.add_argument("--most", type=float, default=0.1, help="median error that passes")
    parser.add_argument("--no-drawing", action="store_true")
    args = parser.parse_args(given)
    files = args.files + (measure(args) if args.measure else [])
    if not files:
        parser.error("no files; --measure makes them")
    rows = [row for path in files for run, records in load(path).items()
            for row in compare(args, run, records)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "plan_check.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table_of(rows))
    if not args.no_drawing:
        draw(rows, args.out / "plan_check.svg")
    return 0 if median_of(rows) <= args.most else 1


if __name__ == "__main__":
    sys.exit(main())
