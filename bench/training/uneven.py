#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of different speeds, and hosts of several: time to DDP's result by all methods.

    sudo build/venv/bin/python bench/training/uneven.py --data DIR --out bench/results/uneven

Runs go on until all of training/uneven_plan.py are done or --budget is used up; call again to go
on. A run that has its record is never repeated. Ranks are real processes on hosts of bench/lab,
which needs root. A rank of speed v takes 1 / v of the base time for a step, by sleeping. --list
shows what is missing, and about how many minutes each part of the table takes. Nothing else may
run on the machine meanwhile.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from training import train  # first: it tells where torch is missing
from training import data, launch, models, rank, store, uneven_plan, uneven_report
from training import uneven_rank
from training.uneven_plan import CASES, METHODS, Planned, Wanted


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", metavar="DIR", help="folder of the data sets")
    add("--cache", metavar="DIR", help="folder for decoded data")
    add("--out", metavar="DIR", help="records, tables and figures")
    add("--budget", type=float, metavar="MINUTES", help="start no run after so long")
    add("--cases", default=",".join(CASES), help="of the table, in order of importance")
    add("--models", default="cnn,resnet,gpt")
    add("--methods", default=",".join(METHODS))
    add("--seeds", type=int, default=3)
    add("--steps", type=int, default=uneven_plan.STEPS, help="of DDP")
    add("--base-ms", type=float, help="a step of speed 1, instead of each model's own")
    add("--samples", type=int, default=0, help="training samples; 0: all")
    add("--test-samples", type=int, default=0, help="test samples; 0: all")
    add("--dataset", help="instead of each model's own")
    add("--loopback", action="store_true",
        help="without bench/lab and root: cases without a shaped link only")
    add("--retry", action="store_true", help="also runs that failed before")
    add("--list", action="store_true", help="print what would run, and run nothing")
    add("--report", action="store_true", help="run nothing")
    add("--pack", action="store_true",
        help="only move the records of new runs into the compressed file")
    add("--rank-of", help=argparse.SUPPRESS)
    return made


def chosen(text: str, known: object, option: str) -> tuple[str, ...]:
    """Names of a list, all known. ValueError."""
    names = tuple(text.split(","))
    for name in names:
        if name not in known:  # type: ignore[operator]
            raise ValueError(f"{option}: {name!r} is none of {', '.join(known)}")  # type: ignore
    return names


def wanted_of(arguments: argparse.Namespace) -> Wanted:
    """What the command line asks for. ValueError."""
    cases = chosen(arguments.cases, CASES, "--cases")
    if arguments.loopback:
        cases = tuple(one for one in cases if not CASES[one].exchange)
    return Wanted(cases, chosen(arguments.models, uneven_plan.BASE_MS, "--models"),
                  chosen(arguments.methods, METHODS, "--methods"), arguments.seeds,
                  arguments.steps, arguments.base_ms)


def rate_of(arguments: argparse.Namespace, wanted: Wanted, one: Planned) -> float:
    """Mbit/s at which a float32 exchange between hosts, 2 (H - 1) / H times 4 bytes a parameter on
    each host's link, takes as many steps as the case says; -1: not shaped, 0: loopback."""
    case = CASES[one.case]
    if not case.exchange:
        return 0.0 if arguments.loopback else -1.0
    kind = models.KINDS[one.model]
    dataset = data.load(arguments.dataset or kind.dataset, arguments.data, arguments.cache)
    made = models.build(one.model, dataset.classes, {})
    bits = 8 * 2 * (case.hosts - 1) / case.hosts * 4 * sum(p.numel() for p in made.parameters())
    seconds = case.exchange * wanted.base_of(one.case, one.model) / 1e3
    return float(f"{bits / seconds / 1e6:.4g}")


def options_of(arguments: argparse.Namespace, wanted: Wanted, one: Planned) -> rank.Options:
    """Options of a planned run."""
    entry, case = METHODS[one.label], CASES[one.case]
    words = ["--model", one.model, "--method", entry.method, "--lr", repr(one.lr), "--epochs", "1",
             "--evaluations", "1", "--samples", str(arguments.samples), "--test-samples",
             str(arguments.test_samples)]
    for name in ("data", "cache", "dataset"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    for name, value in entry.settings:
        words += ["--settings", f"{name}={value}"]
    options = train.options_of(train.parser().parse_args(words), one.seed)
    options.uneven = {
        "case": one.case, "label": one.label, "part": one.part, "share": one.share,
        "speeds": list(case.speeds), "bursts": case.bursts, "steps": wanted.steps,
        "base_ms": wanted.base_of(one.case, one.model), "seconds": one.share * one.seconds}
    return options


def purpose_of(wanted: Wanted, one: Planned) -> str:
    """What makes it another run than one with the same options."""
    base = wanted.base_of(one.case, one.model)
    return f"uneven {one.part} {one.case} {one.share:g} {wanted.steps}x{base:g}ms"


def key_of(arguments: argparse.Namespace, wanted: Wanted, one: Planned) -> str:
    """The record's name. It does not depend on how long DDP took, nor on the data's folder."""
    options = options_of(arguments, wanted, one)
    case = CASES[one.case]
    rate = case.exchange or (0.0 if arguments.loopback else -1.0)
    identity = launch.identity_of(options, case.ranks, rate, purpose_of(wanted, one))
    return str(identity["key"])


def to_do(arguments: argparse.Namespace, wanted: Wanted, out: pathlib.Path
          ) -> list[tuple[Planned, str]]:
    """Runs without a record, as far as they are known already, with their keys."""
    records = store.load_all(out)
    done = {one["key"] for one in records}
    missing = []
    for one in uneven_plan.everything(records, wanted):
        key = key_of(arguments, wanted, one)
        if key not in done and (arguments.retry or not store.failed(out, key).exists()):
            missing.append((one, key))
    return missing


def say(text: str) -> None:
    """A line with the time of day, at once."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def make(arguments: argparse.Namespace, wanted: Wanted, one: Planned, key: str, out: pathlib.Path
         ) -> None:
    """One run: its record, or a file that says why there is none."""
    case = CASES[one.case]
    say(f"{one.case} {one.model} {one.label} {one.part} share {one.share:g} lr {one.lr:g} "
        f"seed {one.seed}: about {one.minutes:.1f} minutes")
    failed = store.failed(out, key)
    try:
        made = launch.run(options_of(arguments, wanted, one), case.ranks,
                          rate_of(arguments, wanted, one), purpose_of(wanted, one),
                          seconds=600 + 20 * one.seconds, per_host=case.per_host)
    except launch.RunFailed as error:
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.write_text(f"{one.case} {one.model} {one.label}\n{error}\n", encoding="utf-8")
        say(f"  failed: {str(error).splitlines()[-1]}")
        return
    store.save({**made, "key": key}, out)
    failed.unlink(missing_ok=True)
    say(f"  {made['metric']} {made['final']:.3f} in {made['wall_s']:.1f} s, steps by rank "
        f"{made['steps_by_rank']}")


def show(arguments: argparse.Namespace, wanted: Wanted, out: pathlib.Path) -> None:
    """What is missing, and what every part of the table takes in all."""
    records = store.load_all(out)
    print("about minutes in all: search, and a walk of three shares, of every method")
    for model in wanted.models:
        for case in wanted.cases:
            labels = [one for one in wanted.methods if uneven_plan.is_wanted(case, one)]
            minutes = {label: uneven_plan.estimate(records, wanted, case, model, label)
                       for label in labels}
            print(f"{model} {case}: {sum(minutes.values()):.0f} =",
                  " + ".join(f"{label} {one:.0f}" for label, one in minutes.items()))
    missing = to_do(arguments, wanted, out)
    print(f"\nmissing, as far as known: {len(missing)} runs, "
          f"{sum(one.minutes for one, _ in missing):.0f} minutes")
    for one, key in missing:
        print(key, one.case, one.model, one.label, one.part, f"{one.share:g} {one.lr:g}", one.seed,
              f"{one.minutes:.1f}")


def run_all(arguments: argparse.Namespace, wanted: Wanted, out: pathlib.Path) -> None:
    """Until nothing is missing or the budget is used up."""
    begun = time.monotonic()
    while missing := to_do(arguments, wanted, out):
        if arguments.budget is not None and time.monotonic() - begun >= 60 * arguments.budget:
            break
        make(arguments, wanted, *missing[0], out)


def main() -> int:
    """Exit status: 0, 2 for wrong use or missing data."""
    made = parser()
    arguments = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks are ended as well
    if arguments.rank_of:
        task = json.loads(arguments.rank_of)
        rank.main(rank.Options(**task["options"]), task["result"], uneven_rank.UnevenRun)
        return 0
    if arguments.out is None:
        made.error("--out DIR is needed")
    out = pathlib.Path(arguments.out)
    try:
        wanted = wanted_of(arguments)
        out.mkdir(parents=True, exist_ok=True)
        if arguments.pack:
            say(f"{store.pack(out)} new records in {out / store.PACKED}")
            return 0
        if arguments.list:
            show(arguments, wanted, out)
            return 0
        if not arguments.report:
            run_all(arguments, wanted, out)
        uneven_report.write(store.load_all(out), wanted, out)
    except (data.MissingData, ValueError) as error:
        made.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
