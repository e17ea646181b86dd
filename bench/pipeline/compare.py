#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pipelines of unequal machines: torch's schedules beside those of `msdu plan --stages`.

    sudo build/venv/bin/python bench/pipeline/compare.py --out bench/results/pipeline

Runs go on until all are done; call again to go on. A run that has its records is never repeated.
Ranks are processes on hosts of bench/lab, which needs root. --list shows what is missing and how
long it takes, --report only writes OUT/table.md. Nothing else may run on the machine meanwhile.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

BENCH = pathlib.Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
sys.path[:0] = [str(BENCH), str(ROOT / "python_shim")]
os.environ.setdefault("MSDU_LIBRARY", str(ROOT / "build" / "lib" / "libmsdu.so"))
os.environ.setdefault("MSDU_MODULE_PATH", str(ROOT / "build" / "lib"))

from pipeline import cases, orders, report

Record = dict[str, Any]
UNFIT = 77  # of bench/lab, where it cannot run
SHARES = (1.0, 0.5, 0.25, 0.25)
TEXT = {"width": 128, "blocks": 8, "length": 64, "samples": 4, "micro_batches": 8}
REPLICAS = {"width": 256, "blocks": 8, "length": 64, "samples": 1, "micro_batches": 4}
KINDS = ("clock", "text", "replicas", "adapt")
DRAWN = ("torch-1f1b", "ours")  # above each other
KEPT = (*DRAWN, "ours-split-v")  # timelines


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of the lab: several methods, in turn.

    task     of the ranks
    options  of the lab
    """

    name: str
    ranks: int
    task: dict[str, Any]
    options: tuple[str, ...]
    about_s: float


class Unfit(Exception):
    """The lab cannot run here."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--out", metavar="DIR", type=pathlib.Path, help="records and table")
    add("--msdu", metavar="FILE", type=pathlib.Path, default=ROOT / "build" / "bin" / "msdu")
    add("--kinds", default=",".join(KINDS))
    add("--cases", default=",".join(cases.CASES), help="of the clock layers")
    add("--rounds", type=int, default=3, help="runs of each case, by turns")
    add("--steps", type=int, default=2, help="of a run and method, after one that does not count")
    add("--list", action="store_true", help="print what would run, and run nothing")
    add("--report", action="store_true", help="run nothing")
    add("--smoke", action="store_true", help="small, over the loopback: judges results, not times")
    add("--rank-of", help=argparse.SUPPRESS)
    add("--result", help=argparse.SUPPRESS)
    return made


def clock_job(args: argparse.Namespace, name: str, number: int) -> Job:
    """Round `number` of a case."""
    case = cases.CASES[name]
    steps = args.steps if min(case.speeds) >= 1 else max(1, args.steps // 2)
    names = cases.methods_of(name)
    task = {"kind": "clock", "label": name, "case": dataclasses.asdict(case), "steps": steps,
            "ways": [dataclasses.asdict(way) for way in orders.ways(args.msdu, case, names)]}
    about = 12 + (steps + 1) * sum(cases.about_s(case, one) for one in names)
    return Job(f"clock-{name}-{number}", len(case.speeds), task,
               ("--rate", f"{case.rate_mbit:g}mbit"), about)


def text_job(args: argparse.Namespace, number: int) -> Job:
    """Real training under shares of a core."""
    task = {"kind": "text", "label": "text", "size": TEXT, "steps": 24, "msdu": str(args.msdu),
            "data_bits": cases.CASES["1124"].data_bits}
    shares = ",".join(f"{share:g}" for share in SHARES)
    return Job(f"text-{number}", 4, task, ("--rate", "100mbit", "--cpu-share", shares), 100)


def replicas_job(args: argparse.Namespace, number: int) -> Job:
    """Two pipelines."""
    task = {"kind": "replicas", "label": "replicas", "size": REPLICAS, "msdu": str(args.msdu),
            "steps": {"pipeline alone": 18, "pipeline + DDP": 9, "msdu": 150},
            "data_bits": cases.CASES["1124"].data_bits}
    return Job(f"replicas-{number}", 4, task, ("--rate", "100mbit"), 150)


def adapt_job(number: int) -> Job:
    """A device slows down by 4 while a pipeline trains."""
    case = cases.ADAPT
    task = {"kind": "adapt", "label": "adapt", "case": dataclasses.asdict(case), "scale": 1.0,
            "noise": 0.0, "adapt": 16, "change": 20, "after": cases.CASES["straggler"].speeds,
            "settle": 44, "rounds": 6}
    return Job(f"adapt-{number}", len(case.speeds), task, ("--rate", f"{case.rate_mbit:g}mbit"),
               170)


def noise_job(number: int) -> Job:
    """Every layer takes another time in every pass."""
    case = cases.NOISE
    task = {"kind": "adapt", "label": "noise", "case": dataclasses.asdict(case),
            "scale": cases.NOISE_SCALE, "noise": 0.2, "adapt": 16, "steps": 500, "limit_s": 60}
    return Job(f"noise-{number}", len(case.speeds), task, ("--rate", f"{case.rate_mbit:g}mbit"),
               75)


def jobs(args: argparse.Namespace) -> list[Job]:
    """All of them, in the order in which they run: cases by turns."""
    kinds = args.kinds.split(",")
    found = []
    for number in range(1, args.rounds + 1):
        if "clock" in kinds:
            found += [clock_job(args, name, number) for name in args.cases.split(",")]
        if number == 1 and "text" in kinds:
            found.append(text_job(args, number))
        if number == 1 and "replicas" in kinds:
            found.append(replicas_job(args, number))
        if number == 1 and "adapt" in kinds:
            found += [adapt_job(number), noise_job(number)]
    return found


def smoke_jobs(args: argparse.Namespace) -> list[Job]:
    """Small ones of each kind."""
    case = cases.SMOKE
    names = list(cases.METHODS)
    size = {"width": 32, "blocks": 2, "length": 16, "samples": 2, "micro_batches": 4}
    common = {"size": size, "msdu": str(args.msdu), "data_bits": 1e9}
    changing = {"kind": "adapt", "case": dataclasses.asdict(dataclasses.replace(
        case, speeds=(1, 1))), "scale": 1.0, "adapt": 4}
    return [
        Job("clock-smoke-1", 2, {
            "kind": "clock", "label": "smoke", "case": dataclasses.asdict(case), "steps": 1,
            "ways": [dataclasses.asdict(way) for way in orders.ways(args.msdu, case, names)]},
            (), 20),
        Job("text-smoke-1", 2, {"kind": "text", "label": "text", "steps": 3, **common}, (), 10),
        Job("replicas-smoke-1", 4, {
            "kind": "replicas", "label": "replicas", **common,
            "steps": {"pipeline alone": 3, "pipeline + DDP": 3, "msdu": 6}}, (), 15),
        Job("adapt-smoke-1", 2, {
            "label": "adapt", "noise": 0.0, "change": 6, "after": (1, 0.25), "settle": 14,
            "rounds": 2, **changing}, (), 10),
        Job("noise-smoke-1", 2, {
            "label": "noise", "noise": 0.2, "steps": 12, "limit_s": 60, **changing}, (), 10)]


def _command(work: pathlib.Path) -> list[str]:
    return [sys.executable, "-B", str(pathlib.Path(__file__).resolve()), "--rank-of",
            str(work / "task.json"), "--result", str(work / "result.json")]


def _in_lab(job: Job, work: pathlib.Path) -> None:
    """RuntimeError, Unfit."""
    words = [sys.executable, "-B", str(BENCH / "lab"), "--ranks", str(job.ranks), "--mtu",
             str(cases.MTU), *job.options, "--timeout", f"{60 + 6 * job.about_s:.0f}",
             "--output-dir", str(work / "logs"), "--", *_command(work)]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode == UNFIT:
        raise Unfit(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"status {done.returncode}\n{done.stderr.strip()}\n{_said(work)}")


def _said(work: pathlib.Path) -> str:
    texts = [file.read_text(encoding="utf-8", errors="replace")[-1500:]
             for file in sorted((work / "logs").glob("*"))]
    return "\n".join(texts)


def _on_loopback(job: Job, work: pathlib.Path) -> None:
    """RuntimeError."""
    (work / "logs").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(job.ranks):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(job.ranks),
                       "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
                       "OMP_NUM_THREADS": "1"}
        with (work / "logs" / f"rank{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen(_command(work), env=environment, stdout=log, stderr=log))
    try:
        deadline = time.monotonic() + 300
        for rank in ranks:
            rank.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"{[rank.returncode for rank in ranks]}\n{_said(work)}")


def run(job: Job, is_lab: bool) -> list[Record]:
    """Its records, one a method. RuntimeError, Unfit."""
    from training import record

    machine = record.machine()
    with tempfile.TemporaryDirectory(prefix="msdu-pipeline-") as folder:
        work = pathlib.Path(folder)
        (work / "task.json").write_text(json.dumps(job.task), encoding="utf-8")
        (_in_lab if is_lab else _on_loopback)(job, work)
        results = json.loads((work / "result.json").read_text(encoding="utf-8"))
    common = {"run": job.name, "kind": job.task["kind"], "case": job.task["label"],
              "date": time.strftime("%Y-%m-%d"), **machine}
    ways = {way["name"]: way for way in job.task.get("ways", [])}
    records = []
    for one in results:
        way = ways.get(one["method"])
        shown = {} if way is None else {
            "predicted_s": way["predicted_s"], "bound_s": way["bound_s"],
            "counts": way["counts"], "machines": [way["machines"][row] for row in way["rows"]]}
        records.append({**common, **shown, **one})
    return records


def keep_timelines(out: pathlib.Path, records: list[Record]) -> None:
    """Out of the records, into files; only those of KEPT."""
    for record in records:
        timeline = record.pop("timeline", None)
        if timeline is not None and record["method"] in KEPT:
            name = f"{record['case']}-{record['method']}.json"
            (out / name).write_text(json.dumps(timeline), encoding="utf-8")


def draw(out: pathlib.Path) -> None:
    """A step by 1F1B above one of ours, for each case that has both."""
    for name in cases.CASES:
        files = [out / f"{name}-{method}.json" for method in DRAWN]
        if all(file.exists() for file in files):
            subprocess.run([sys.executable, "-B", str(BENCH / "overlap" / "stages_draw.py"),
                            *map(str, files), "--out", str(out / f"{name}.svg")], check=True)


def load(out: pathlib.Path) -> list[Record]:
    """All records; a line that was cut off is none."""
    file = out / "records.jsonl"
    found = []
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for line in filter(None, text.split("\n")):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def say(text: str) -> None:
    """A line with the time of day, at once."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def missing(args: argparse.Namespace) -> list[Job]:
    """Those without records."""
    done = {record["run"] for record in load(args.out)}
    return [job for job in jobs(args) if job.name not in done]


def run_all(args: argparse.Namespace) -> int:
    """Until all are done; one that fails is told, and tried again by the next call."""
    status = 0
    for job in missing(args):
        say(f"{job.name}: about {job.about_s:.0f} s")
        begun = time.monotonic()
        try:
            records = run(job, True)
        except RuntimeError as problem:
            say(f"{job.name} failed: {problem}")
            status = 1
            continue
        keep_timelines(args.out, records)
        # one write, on a line of its own even where the last one was cut off
        lines = "\n" + "".join(json.dumps(record) + "\n" for record in records)
        with (args.out / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(lines)
        say(f"{job.name}: {time.monotonic() - begun:.0f} s; "
            + ", ".join(f"{one['method']} {report.median(one):.3f}" for one in records))
    return status


def smoke(args: argparse.Namespace) -> int:
    """Are all results right? Exit status."""
    records = [record for job in smoke_jobs(args) for record in run(job, False)]
    print(report.text(records, {"smoke": cases.SMOKE}))
    wrong = report.unequal(records)
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return int(bool(wrong))


def of_rank(args: argparse.Namespace) -> int:
    """What a rank runs."""
    import importlib

    task = json.loads(pathlib.Path(args.rank_of).read_text(encoding="utf-8"))
    kind = {"clock": "clock_rank", "text": "text_rank", "replicas": "replica_rank",
            "adapt": "adapt_rank"}[task["kind"]]
    found = importlib.import_module(f"pipeline.{kind}").main(task)
    if os.environ["RANK"] == "0":
        pathlib.Path(args.result).write_text(json.dumps(found), encoding="utf-8")
    return 0


def main() -> int:
    """Exit status: 0, 1 for a failed run or a wrong result, 2 for wrong use, 77 without a lab."""
    made = parser()
    args = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.rank_of:
        return of_rank(args)
    if args.smoke:
        return smoke(args)
    if args.out is None:
        made.error("--out DIR is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    status = 0
    try:
        if args.list:
            left = missing(args)
            for job in left:
                print(f"{job.name} about {job.about_s:.0f} s")
            minutes = sum(job.about_s for job in left) / 60
            print(f"missing: {len(left)} runs, about {minutes:.0f} minutes")
            return 0
        if not args.report:
            status = run_all(args)
    except Unfit as problem:
        print(problem, file=sys.stderr)
        return UNFIT
    (args.out / "table.md").write_text(report.text(load(args.out), cases.CASES), encoding="utf-8")
    draw(args.out)
    return status


if __name__ == "__main__":
    sys.exit(main())
