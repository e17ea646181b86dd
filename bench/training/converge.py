#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train to convergence by every method, at several lengths, and compare.

    bench/training/converge.py --data DIR --out bench/results/converge --workloads W1,W2 --budget 60

Ranks are threads of one process that exchange through the library's backend "local", so a run
needs one core and says nothing of time (training/converge_run.py). Call again to go on: a run that
has its record is never repeated, and one that was killed goes on from its last horizon. Several
such commands may work for one folder. --report only writes the table and figures, --pack takes
new records into one file.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

try:
    from training import converge_plan as plan
    from training import converge_replay, converge_run, data, launch, rank, store
    from training import converge_report as report
except ModuleNotFoundError as problem:
    sys.exit(f"{problem}: this Python cannot run it; that of build/venv can, after make test")

LONGEST = 6 * 3600.0  # seconds of a run
SMOKE = ("ddp", "ours-h1-sparse", "ours-h4-int2")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", metavar="DIR", help="folder of the data sets")
    add("--cache", metavar="DIR", help="folder for decoded data")
    add("--out", metavar="DIR", help="records, table and figures")
    add("--budget", type=float, metavar="MINUTES", help="start no run after so long")
    add("--jobs", type=int, default=1, metavar="N", help="runs at a time, a core each")
    add("--workloads", default="W1,W2", help=f"some of {','.join(plan.WORKLOADS)}")
    add("--methods", default=",".join(plan.METHODS))
    add("--seeds", default="1,2,3")
    add("--search", action="store_true", help="first search learning rates, for all methods alike")
    add("--list", action="store_true", help="print what would run, and run nothing")
    add("--report", action="store_true", help="run nothing")
    add("--steps-from", metavar="DIR", help="run nothing, but take step times on shaped links from "
        "the records of a comparison (train_table.py)")
    add("--courses", metavar="DIR", default=str(launch.BENCH / "results" / "train"),
        help="records of a comparison, from which replay-R takes what the default did")
    add("--pack", action="store_true",
        help="only move the records of new runs into the compressed file")
    add("--smoke", action="store_true", help="a few steps on made-up data, nothing is kept")
    add("--rank-of", help=argparse.SUPPRESS)
    return made


def options_of(arguments: argparse.Namespace, one: plan.Planned) -> rank.Options:
    """Options of a run, without its files."""
    work, kind = one.workload, one.workload.kind
    settings = {}
    if one.method.startswith("replay-"):
        courses = store.load_all(pathlib.Path(arguments.courses))
        settings["course"] = converge_replay.course_of(
            courses, work.model, work.dataset, float(one.method.removeprefix("replay-")))
    return rank.Options(
        model=work.model, dataset=work.dataset, method=one.method, data=arguments.data,
        cache=arguments.cache, seed=one.seed, lr=one.lr, batch=work.batch or kind.batch,
        epochs=work.epochs, samples=work.samples, test_samples=0, steps=0,
        evaluations=len(one.shares), optimizer=kind.optimizer, weight_decay=work.weight_decay,
        warmup=work.warmup, size=dict(work.size), settings=settings, device="cpu", threads=1,
        converge=dataclasses.asdict(converge_run.Plan(plan.RANKS, list(one.shares), work.decay)))


def key_of(options: rank.Options, purpose: str) -> str:
    """The run's name."""
    return str(launch.identity_of(options, plan.RANKS, 0, purpose)["key"])


@contextlib.contextmanager
def held(file: pathlib.Path) -> Iterator[bool]:
    """Is this file ours? Another command's is, until that ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        file.unlink(missing_ok=True)


def say(text: str) -> None:
    """A line with the time of day, at once."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


class Campaign:
    """All runs that one command was asked for."""

    def __init__(self, arguments: argparse.Namespace, out: pathlib.Path) -> None:
        self.arguments, self.out = arguments, out
        self.begun = time.monotonic()

    def planned(self) -> Iterator[tuple[plan.Planned, rank.Options, str]]:
        """Runs that have no record yet."""
        records = store.load_all(self.out)
        done = {one["key"] for one in records}
        wanted = self.arguments
        for one in plan.everything(records, wanted.workloads.split(","), wanted.methods.split(","),
                                   [int(seed) for seed in wanted.seeds.split(",")], wanted.search):
            options = options_of(wanted, one)
            key = key_of(options, one.purpose)
            if key not in done and not store.failed(self.out, key).exists():
                yield one, options, key

    def is_over(self) -> bool:
        """Is the time used up?"""
        budget = self.arguments.budget
        return budget is not None and time.monotonic() - self.begun >= 60 * budget

    def run(self) -> None:
        """All of them, but those that another command has in hand."""
        skipped: set[str] = set()
        while not self.is_over():
            found = next((run for run in self.planned() if run[2] not in skipped), None)
            if found is None:
                return
            one, options, key = found
            with held(self.file(key, "lock")) as is_ours:
                if is_ours and not (self.out / store.SINGLE / f"{key}.json").exists():
                    self.make(one, options, key)
            skipped.add(key)

    def file(self, key: str, kind: str) -> pathlib.Path:
        """A file beside the record."""
        return self.out / store.SINGLE / f"{key}.{kind}"

    def make(self, one: plan.Planned, options: rank.Options, key: str) -> None:
        """One run: its record, or a file that says why there is none."""
        assert options.converge is not None
        options.converge["state"] = str(self.file(key, "state"))
        say(f"{one.purpose} {one.method} seed {one.seed} lr {one.lr:g}")
        try:
            options.converge["start"] = self.start(one)
            made = launch.run(options, plan.RANKS, 0, one.purpose, LONGEST)
        except launch.RunFailed as error:
            store.failed(self.out, key).write_text(f"{one.purpose} {one.method}\n{error}\n",
                                                   encoding="utf-8")
            say(f"  failed: {str(error).splitlines()[-1]}")
            return
        store.save(made, self.out)
        self.file(key, "state").unlink(missing_ok=True)
        ends = ", ".join(f"{loss:.4f} {accuracy:.2f} %" for loss, accuracy in zip(
            made["eval_loss"], made["eval_accuracy"]))
        say(f"  {ends}, {made['bytes_per_rank'] / 1e6:.1f} MB a rank, {made['wall_s']:.0f} s")

    def start(self, one: plan.Planned) -> str:
        """The file that a run begins with, made where it is missing; "" where there is none."""
        start = plan.start_of(one.workload, one.seed)
        if start is None:
            return ""
        options = options_of(self.arguments, start)
        file = self.file(key_of(options, start.purpose), "pt")
        assert options.converge is not None
        options.converge["end"] = str(file)
        while not file.exists():
            with held(file.with_suffix(".lock")) as is_ours:
                if is_ours and not file.exists():
                    say(f"{start.purpose} seed {start.seed}")
                    launch.run(options, plan.RANKS, 0, start.purpose, LONGEST)
                elif not is_ours:
                    time.sleep(5)
        return str(file)


def with_others(arguments: argparse.Namespace, campaign: Campaign) -> None:
    """This command and --jobs - 1 more like it."""
    words = [sys.executable, *sys.argv, "--jobs", "1"]
    others = [subprocess.Popen(words) for _ in range(arguments.jobs - 1)]
    try:
        campaign.run()
        for other in others:
            other.wait()
    finally:
        for other in others:
            other.terminate()
            other.wait()


def smoke() -> None:
    """W1 for a few steps on made-up data: every kind of method, a kill between, and the report."""
    work = dataclasses.replace(plan.WORKLOADS["W1"], dataset="synthetic", epochs=4)
    with tempfile.TemporaryDirectory() as folder:
        arguments = parser().parse_args(["--out", folder])
        campaign = Campaign(arguments, pathlib.Path(folder))
        (campaign.out / store.SINGLE).mkdir()
        for method in SMOKE:
            one = plan.Planned(work, method, 1, work.lr)
            options = options_of(arguments, one)
            campaign.make(one, options, key_of(options, one.purpose))
        if store.failures(campaign.out):
            sys.exit(store.failures(campaign.out)[0].read_text(encoding="utf-8"))
        report.write(store.load_all(campaign.out), campaign.out)
        print((campaign.out / report.TABLE).read_text(encoding="utf-8"))


def main() -> int:
    """Exit status: 0, 2 for wrong use or missing data."""
    made = parser()
    arguments = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that runs are ended as well
    if arguments.rank_of:
        task = json.loads(arguments.rank_of)
        converge_run.main(rank.Options(**task["options"]), task["result"])
        return 0
    if arguments.smoke:
        smoke()
        return 0
    if arguments.out is None:
        made.error("--out is missing")
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(arguments, out)
    try:
        if arguments.pack:
            say(f"{store.pack(out)} new records in {out / store.PACKED}")
            return 0
        if arguments.list:
            for one, _, key in campaign.planned():
                print(key, one.purpose, one.method, one.seed, one.lr)
            return 0
        if arguments.steps_from:
            report.take_steps(pathlib.Path(arguments.steps_from), out)
        elif not arguments.report:
            with_others(arguments, campaign)
        report.write(store.load_all(out), out)
    except KeyError as error:
        made.error(f"--workloads: {error} is none of {', '.join(plan.WORKLOADS)}")
    except (data.MissingData, ValueError) as error:
        made.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
