#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings to convergence: ranks as threads give what processes give, branches leave no trace.

Exit status 77 where torch is not installed.
"""
from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from training import converge, converge_replay, converge_run, rank, record
from training import converge_outcome as found
from training import converge_plan as plan
from training import converge_report as report
from training.converge_run import ConvergeRun

RANKS = 4
STEPS = 24
METHODS = ("ddp", "ours-h1-int4", "ours-h1-sparse", "ours-h2-int4", "ours-h4-int2",
           "ours-h4-int2-block", "diloco-ours")


def options(method: str, **changes: Any) -> rank.Options:
    """A run of a second."""
    plan = {name: changes.pop(name) for name in ("shares", "state") if name in changes}
    plan |= {name: changes.pop(name) for name in ("start", "end") if name in changes}
    chosen = {
        "model": "cnn", "dataset": "synthetic", "method": method, "data": None, "cache": None,
        "seed": 1, "lr": 0.05, "batch": 8, "epochs": 2, "samples": 16 * STEPS, "test_samples": 64,
        "steps": 0, "evaluations": 3, "optimizer": "sgd", "weight_decay": 5e-4, "warmup": 0.1,
        "size": {"width": 4}, "settings": {} if method == "ddp" else {"hosts": "flat"},
        "device": "cpu", "threads": 1,
        "converge": {"ranks": RANKS, "shares": [0.25, 0.5, 1.0], "decay": 0.2, **plan}}
    return rank.Options(**{**chosen, **changes})


TEXT: dict[str, Any] = {
    "model": "gpt", "dataset": "synthetic-text", "optimizer": "adamw", "lr": 1e-2,
    "size": {"width": 16, "layers": 1, "heads": 2}}
VGG: dict[str, Any] = {"model": "vgg", "size": {"width": 2, "hidden": 16, "dropout": 0.5}}
COURSE = {"hosts": "flat", "course": "0:1:float32 0.1:1:int4 0.45:2:int4 0.7:3:sparse"}
RUNS = {**{method: options(method) for method in METHODS},
        "replay": options("replay-16", settings=COURSE),
        "text": options("ours-h2-int4", **TEXT),
        "resnet": options("ours-h1-float32", model="resnet", size={"width": 2})}


def as_rank(number: int, store: str, results: str) -> None:
    """All of RUNS as one of the ranks, one after another in the same processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=RANKS)
    found = {name: rank.train_once(one, ConvergeRun) for name, one in RUNS.items()}
    if number == 0:
        pathlib.Path(results).write_text(json.dumps(found))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def ends(made: record.Record) -> list[float]:
    """What came out at every horizon."""
    return [*made["eval_loss"], *made["eval_train_loss"]]


class Simulation(unittest.TestCase):
    """Ranks as threads over the backend local, beside processes over Gloo."""

    def test_threads_train_as_processes_do(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, "--rank"]
            ranks = [subprocess.Popen([*words, str(number), f"{folder}/store", f"{folder}/found"],
                                      env={**os.environ, "OMP_NUM_THREADS": "1"})
                     for number in range(RANKS)]
            try:
                codes = [one.wait(300) for one in ranks]
            finally:
                for one in ranks:
                    one.kill()
            self.assertEqual(codes, [0] * RANKS)
            real = json.loads(pathlib.Path(folder, "found").read_text())
        for name, one in RUNS.items():
            # of the library to the bit; DDP adds up in another order
            delta = 2e-5 if one.method == "ddp" else 0
            with self.subTest(name):
                made = converge_run.train_once(one)
                for here, there in zip(ends(made), ends(real[name]), strict=True):
                    self.assertAlmostEqual(here, there, delta=delta)


class Branches(unittest.TestCase):
    """Several lengths of one run."""

    def test_a_shorter_length_leaves_no_trace(self) -> None:
        for method, changes in (*((method, {}) for method in METHODS), ("ours-h2-int4", TEXT),
                                ("ddp", VGG), ("ours-h4-int2", VGG),
                                ("replay-16", {"settings": COURSE})):
            with self.subTest(method=method, **changes):
                whole = converge_run.train_once(options(method, **changes))
                alone = converge_run.train_once(options(method, **changes, shares=[1.0]))
                self.assertEqual(whole["eval_loss"][-1], alone["eval_loss"][-1])
                # slices are cut as measured, and each of them ends with a shorter block
                self.assertAlmostEqual(whole["bytes_per_rank"] / alone["bytes_per_rank"], 1, 1)

    def test_a_killed_run_goes_on_from_its_last_length(self) -> None:
        save = ConvergeRun._save

        def broken(self: ConvergeRun, file: pathlib.Path | None) -> None:
            save(self, file)
            raise InterruptedError

        for method in ("ddp", "ours-h1-sparse", "ours-h4-int2"):
            with self.subTest(method), tempfile.TemporaryDirectory() as folder:
                kept = options(method, **VGG, state=f"{folder}/state")
                whole = converge_run.train_once(options(method, **VGG))
                with unittest.mock.patch.object(ConvergeRun, "_save", broken), \
                        self.assertRaises(InterruptedError):
                    converge_run.train_once(kept)
                made = converge_run.train_once(kept)
                self.assertEqual(ends(made), ends(whole))
                self.assertEqual(made["eval_bytes"], whole["eval_bytes"])

    def test_a_run_begins_with_the_end_of_another(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/end"
            first = converge_run.train_once(options("ddp", shares=[1.0], end=file))
            second = converge_run.train_once(options("ours-h2-int4", shares=[1.0], lr=0.0,
                                                     start=file))
        self.assertAlmostEqual(first["eval_loss"][-1], second["eval_loss"][-1], places=5)

    def test_the_rate_falls_to_zero_at_the_end_only(self) -> None:
        before = [converge_run.factor(step, 4, 10**9, 10**9) for step in range(80)]
        falling = [converge_run.factor(step, 4, 80, 100) for step in range(100)]
        self.assertEqual(before, falling[:80])
        self.assertEqual(falling[80:82], [1.0, 0.95])
        self.assertTrue(math.isclose(falling[-1], 0.05))


def made_up(method: str, seed: int, losses: list[float], sent: int = 1000) -> record.Record:
    """What a report reads of a record of W1."""
    return {
        "purpose": "W1", "method": method, "lr": 0.05, "seed": seed, "eval_loss": losses,
        "eval_samples": [100, 200, 400], "eval_accuracy": [100 - 10 * one for one in losses],
        "eval_train_loss": losses, "ranks": 4, "parameters": 10, "steps": 100,
        "bytes_per_rank": sent, "batch": 32, "epochs": 3, "samples_per_epoch": 400,
        "optimizer": "sgd", "processor": "none", "cores": 1, "device": "cpu", "torch": "2",
        "commit": "0", "load_before": 0.0}


class Report(unittest.TestCase):
    """Numbers from records."""

    def setUp(self) -> None:
        # a loss that falls by 1 with every doubling; the method needs 2^0.5 times the samples
        self.records = [made_up("ddp", seed, [3.0, 2.0, 1.0], 6000) for seed in (1, 2)]
        self.records += [made_up("ours-h4-int2", seed, [3.5, 2.5, 1.5]) for seed in (1, 2)]
        self.ddp, self.line = found.lines_of(self.records, "W1")

    def test_step_factors_are_interpolated(self) -> None:
        for horizon in range(3):
            factor = found.step_factor(self.line, self.ddp, horizon, "loss")
            self.assertAlmostEqual(factor.mean, math.sqrt(2))
            self.assertAlmostEqual(factor.error, 0)
            self.assertEqual(factor.bound, "")
            accuracy = found.step_factor(self.line, self.ddp, horizon, "accuracy")
            self.assertAlmostEqual(accuracy.mean, math.sqrt(2))

    def test_what_no_length_reaches_is_a_bound(self) -> None:
        far = found.Line("far", 0.05, {1: made_up("far", 1, [9.0, 8.0, 7.0])})
        near = found.Line("near", 0.05, {1: made_up("near", 1, [0.5, 0.4, 0.3])})
        for line, bounds in ((far, ">>>"), (near, "<<<")):
            factors = [found.step_factor(line, self.ddp, i, "loss") for i in range(3)]
            self.assertEqual("".join(one.bound for one in factors), bounds)
        self.assertEqual(found.step_factor(far, self.ddp, 1, "loss").mean, 2)

    def test_gaps_are_of_the_same_seeds(self) -> None:
        self.line.by_seed[2] = made_up("ours-h4-int2", 2, [3.7, 2.5, 1.5])
        self.line.by_seed[3] = made_up("ours-h4-int2", 3, [99.0, 99.0, 99.0])
        made = found.gap(self.line, self.ddp, "loss", 0)
        self.assertAlmostEqual(made.mean, 0.6)
        self.assertAlmostEqual(made.error, 0.1)

    def test_equal_time_gives_a_faster_method_more_samples(self) -> None:
        # in DDP's time for 100 samples it makes 200; then more than the 400 that were run
        twice = found.at_equal_time(self.line, self.ddp, 1.0, 2.0, "loss")
        self.assertAlmostEqual(twice.mean, 2.5 - 3.0)
        self.assertEqual(twice.bound, "")
        much = found.at_equal_time(self.line, self.ddp, 1.0, 8.0, "loss")
        self.assertEqual((round(much.mean, 6), much.bound), (1.5 - 3.0, "<"))

    def test_the_table_has_every_number_and_dashes_for_times_not_measured(self) -> None:
        # dashes only where another method has been measured
        self.records += [made_up("ours-h1-int4", 1, [3.1, 2.1, 1.1], 2000)]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            steps = [{"workload": "W1", "method": method, "rate_mbit": 100.0, "step_s": seconds,
                      "source": "here"} for method, seconds in (("ours-h1-int4", 0.02),
                                                                ("ddp", 0.08))]
            (out / report.STEPS).write_text(json.dumps(steps))
            report.write(self.records, out)
            table = (out / report.TABLE).read_text()
        self.assertIn("| ours-h4-int2 | 0.05 | 2 | +0.500 +- 0.000 |", table)
        self.assertIn("| 1.41 +- 0.00 | 1.41 +- 0.00 | 1.41 +- 0.00 | 6.0 | 4.2 |", table)
        self.assertIn("| ours-h4-int2 | - | - | - | - |", table)
        self.assertIn("| ours-h1-int4 | 20.0 | 4.00 | 3.73 | -1.900 |", table)

    def test_step_times_are_taken_of_the_same_model_only(self) -> None:
        one = {"purpose": "step", "method": "ours-h4-ternary", "settings": "", "model": "cnn",
               "dataset": "cifar100", "size": "", "batch": 32, "ranks": 4, "rate_mbit": 100.0,
               "step_median_s": 0.02, "commit": "0", "started": "", "ratio": 4.0}
        others = [{**one, "size": "width=32"}, {**one, "rate_mbit": 0.0},
                  {**one, "purpose": "whole", "method": "ours", "step_median_s": 0.03},
                  {**one, "method": "powersgd"}]
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "records.json")
            source.write_text(json.dumps([one, *others]))
            for _ in range(2):  # again changes nothing
                report.take_steps(source, pathlib.Path(folder))
            steps = report.steps_of(pathlib.Path(folder))
        self.assertEqual([(step["workload"], step["method"], step["step_s"]) for step in steps], [
            (work, method, step) for work in ("W2", "W7-images")
            for method, step in (("ours-h4-int2", 0.02), ("replay-4", 0.03))])

    def test_every_workload_can_be_planned(self) -> None:
        arguments = converge.parser().parse_args([])
        for name, work in plan.WORKLOADS.items():
            runs = list(plan.everything([], [name], ["ddp"], [1, 2], True))
            self.assertEqual(len(runs), 3 * 2 + 2)
            keys = {converge.key_of(converge.options_of(arguments, one), one.purpose)
                    for one in runs}
            self.assertEqual(len(keys), len(runs))
            self.assertEqual(plan.start_of(work, 1) is None, not work.start)

    def test_a_course_is_that_of_a_whole_run(self) -> None:
        run = {"purpose": "whole", "method": "ours", "settings": "", "model": "cnn", "ratio": 16.0,
               "dataset": "cifar100", "seed": 1, "started": "", "steps": 100,
               "msdu_change_step": [1, 21], "msdu_change_interval": [1, 2],
               "msdu_change_bits": [32, 1]}
        other = {**run, "dataset": "tinyimagenet", "msdu_change_bits": [32, 4]}
        text = converge_replay.course_of([other, run], "cnn", "cifar100", 16)
        self.assertEqual(text, "0.0000:1:float32 0.2000:2:sparse")
        with self.assertRaisesRegex(ValueError, "no whole run"):
            converge_replay.course_of([run], "vgg", "cifar100", 16)

    def test_the_best_rate_is_that_of_all_seeds(self) -> None:
        tried = [{**made_up("ddp", seed, [loss]), "purpose": "W1-search", "lr": lr}
                 for lr, losses in ((0.05, (2.0, 3.0)), (0.1, (1.0, 3.0)), (0.2, (0.5,)))
                 for seed, loss in enumerate(losses)]
        self.assertEqual(plan.best_lr(tried, plan.WORKLOADS["W1"], "ddp"), 0.1)
        self.assertEqual(plan.best_lr([], plan.WORKLOADS["W1"], "ddp"), 0.05)


class Command(unittest.TestCase):
    """converge.py as a user calls it, but in this process."""

    WORK = plan.Workload("W0", "cnn", "synthetic", 1, 0.05, size=(("width", 4),), samples=256,
                         batch=8, start="S0")
    START = plan.Workload("S0", "cnn", "synthetic", 1, 0.05, size=(("width", 4),), samples=64,
                          batch=8)

    def call(self, folder: str, *words: str) -> str:
        """What it says; fails where it fails."""
        output = io.StringIO()
        before = signal.getsignal(signal.SIGTERM)
        arguments = ["converge.py", "--out", folder, "--workloads", "W0", "--seeds", "1",
                     "--methods", "ddp,ours-h1-int4", *words]
        with unittest.mock.patch.object(sys, "argv", arguments), \
                unittest.mock.patch.dict(plan.WORKLOADS, {"W0": self.WORK}), \
                unittest.mock.patch.dict(plan.STARTS, {"S0": self.START}), \
                contextlib.redirect_stdout(output):
            try:
                self.assertEqual(converge.main(), 0)
            finally:
                signal.signal(signal.SIGTERM, before)
        return output.getvalue()

    def test_finished_runs_are_not_repeated(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            listed = self.call(folder, "--list").splitlines()
            self.assertEqual(len(listed), 2)
            taken = pathlib.Path(folder, "records", f"{listed[1].split()[0]}.lock")
            with converge.held(taken) as is_ours:  # as by another command
                self.assertTrue(is_ours)
                first = self.call(folder)
            self.assertEqual(first.count("W0 ddp seed 1"), 1)
            self.assertEqual(first.count("S0 seed"), 1)
            self.assertEqual(first.count("W0 ours-h1-int4"), 0)
            second = self.call(folder)
            self.assertEqual((second.count("W0 ddp"), second.count("W0 ours-h1-int4"),
                              second.count("S0 seed")), (0, 1, 0))
            self.assertIn("2 new records", self.call(folder, "--pack"))
            self.assertEqual(self.call(folder, "--list"), "")
            self.call(folder, "--report")
            self.assertIn("| ours-h1-int4 | 0.05 | 1 |",
                          pathlib.Path(folder, report.TABLE).read_text())


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        as_rank(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        unittest.main()
