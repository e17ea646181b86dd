#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole training comparison: every run of training/plan.py, then tables and figures.

    bench/training/train_table.py --data DIR --out bench/results/train [--budget MINUTES]

Runs go on in order of importance until all are done or the budget is used up; call again to go
on. A run that has its record is never repeated. Runs on shaped links need root (bench/lab);
without, they are left out. --report only writes tables and figures of the records there are.
Records of new runs are files of their own, until --pack takes them into one compressed file
(training/store.py).
"""
from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from training import train  # first: it tells where torch is missing
from training import data, launch, models, outcome, plan, rank, record, report, store

PARTS = ("search", "accuracy", "pace", "step", "whole")
Run = tuple[plan.Planned, rank.Options, float, str]  # with its rate and key


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", metavar="DIR", help="folder of the data sets")
    add("--cache", metavar="DIR", help="folder for decoded data")
    add("--out", metavar="DIR", required=True, help="records, tables and figures")
    add("--budget", type=float, metavar="MINUTES", help="start no run after so long")
    add("--models", default="cnn,resnet,vgg,gpt", help="in order of importance; resnet:"
        "tinyimagenet is a model on another data set")
    add("--parts", default=",".join(PARTS), help="kinds of runs to make")
    add("--methods", default="", help="only methods that begin with one of these")
    add("--seeds", type=int, default=len(plan.SEEDS), help="only the first so many")
    add("--ratios", default="", help="communication over computation of shaped runs, as 4,16")
    add("--ranks", type=int, default=4)
    add("--device", default="cpu", help="cpu or cuda, of the parts search and accuracy")
    add("--epochs", type=int, help="instead of each model's own")
    add("--samples", type=int, help="training samples of an epoch, instead of each model's own")
    add("--test-samples", type=int, default=0)
    add("--retry", action="store_true", help="also runs that failed before")
    add("--list", action="store_true", help="print what would run, and run nothing")
    add("--report", action="store_true", help="run nothing")
    add("--pack", action="store_true",
        help="only move the records of new runs into the compressed file")
    return made


def wanted_models(text: str) -> list[tuple[str, str]]:
    """"resnet:tinyimagenet,gpt" as pairs of model and data set."""
    pairs = []
    for part in text.split(","):
        model, _, dataset = part.partition(":")
        if model not in models.KINDS or (dataset and dataset not in data.LOADERS):
            raise ValueError(f"--models: {part!r} is no model or data set")
        pairs.append((model, dataset or models.KINDS[model].dataset))
    return pairs


def rate_of(records: list[record.Record], one: plan.Planned) -> float | None:
    """Mbit/s at which DDP's bytes take `ratio` times as long as computing; None: not known yet.

    DDP sends what outcome.plain_bits() says in every step.
    """
    if one.ratio is None:
        return -1.0 if one.part == "pace" else 0.0
    for pace in records:
        if (pace["purpose"], pace["model"], pace["dataset"]) == ("pace", one.model, one.dataset):
            bits = outcome.plain_bits(pace["ranks"], pace["parameters"])
            return float(f"{bits / (one.ratio * pace['step_median_s']) / 1e6:.3g}")
    return None


def options_of(arguments: argparse.Namespace, one: plan.Planned) -> rank.Options:
    """Options of a planned run."""
    steps = plan.steps_of(one)
    device = arguments.device if one.part in ("search", "accuracy") else "cpu"
    words = ["--model", one.model, "--method", one.method, "--lr", repr(one.lr), "--steps",
             str(steps), "--test-samples", str(arguments.test_samples), "--device", device,
             "--evaluations", "0" if steps else "4"]
    for name in ("data", "cache", "epochs", "samples"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    if one.dataset:
        words += ["--dataset", one.dataset]
    for name, value in one.settings:
        words += ["--settings", f"{name}={value}"]
    return train.options_of(train.parser().parse_args(words), one.seed)


def records_of(out: pathlib.Path) -> list[record.Record]:
    """Records of today's methods: ours-...-keep was an option until version 0.2."""
    return [one for one in store.load_all(out) if not one["method"].endswith("-keep")]


def to_do(arguments: argparse.Namespace, out: pathlib.Path) -> Iterator[Run]:
    """Runs that have no record yet, as far as they are known already."""
    records = records_of(out)
    done = {one["key"] for one in records}
    parts, starts = arguments.parts.split(","), tuple(arguments.methods.split(","))
    ratios = [float(ratio) for ratio in arguments.ratios.split(",") if ratio] or plan.RATIOS
    for one in plan.everything(records, wanted_models(arguments.models)):
        if one.part not in parts or not one.method.startswith(starts) or (
                one.seed in plan.SEEDS[arguments.seeds:]) or (
                one.ratio is not None and one.ratio not in ratios):
            continue
        rate = rate_of(records, one)
        if rate is None or (rate and os.geteuid() != 0):
            continue
        options = options_of(arguments, one)
        key = launch.identity_of(options, arguments.ranks, rate, one.part)["key"]
        has_failed = store.failed(out, key).exists() and not arguments.retry
        if key not in done and not has_failed:
            done.add(key)
            yield one, options, rate, key


def say(text: str) -> None:
    """A line with the time of day, at once."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def make(run: Run, ranks: int, out: pathlib.Path) -> None:
    """One run: its record, or a file that says why there is none."""
    one, options, rate, key = run
    say(f"{one.part} {one.model} {one.method} seed {one.seed} lr {one.lr:g} "
        f"{plan.text_of(one.settings)} rate {rate:g}")
    failed = store.failed(out, key)
    try:
        made = launch.run(options, ranks, rate, one.part)
    except launch.RunFailed as error:
        failed.parent.mkdir(exist_ok=True)
        failed.write_text(f"{one.part} {one.model} {one.method}\n{error}\n", encoding="utf-8")
        say(f"  failed: {str(error).splitlines()[-1]}")
        return
    store.save({**made, "ratio": one.ratio}, out)
    failed.unlink(missing_ok=True)
    final = "" if made["final"] is None else f"{made['metric']} {made['final']:.3f}, "
    say(f"  {final}{made['bytes_per_rank'] / 1e6:.1f} MB a rank, {made['wall_s']:.1f} s, "
        f"{made['step_median_s'] * 1e3:.1f} ms a step")


def main() -> int:
    """Exit status: 0, 2 for wrong use or missing data."""
    made = parser()
    arguments = made.parse_args()
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks are ended as well
    begun = time.monotonic()
    try:
        if arguments.pack:
            say(f"{store.pack(out)} new records in {out / store.PACKED}")
            return 0
        if arguments.list:
            for one, _, rate, key in to_do(arguments, out):
                print(key, one.part, one.model, one.method, one.seed, one.lr,
                      plan.text_of(one.settings), f"{rate:g}")
            return 0
        while not arguments.report:
            run = next(to_do(arguments, out), None)
            minutes = (time.monotonic() - begun) / 60
            if run is None or (arguments.budget is not None and minutes >= arguments.budget):
                break
            make(run, arguments.ranks, out)
        report.write(records_of(out), out)
    except (data.MissingData, ValueError) as error:
        made.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
