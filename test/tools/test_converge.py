#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings to convergence: ranks as threads give what processes give, branches leave no trace.

Exit status 77 where torch is not installed.
"""
from __future__ import annotations

import gc
import json
import math
import os
import pathlib
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

from training import converge_run, rank, record
from training.converge_run import ConvergeRun

RANKS = 4
STEPS = 24
METHODS = ("ddp", "ours-h1-int4", "ours-h1-sparse", "ours-h2-int4", "ours-h4-int2",
           "ours-h4-int2-block", "diloco-ours")


def options(method: str, **changes: Any) -> rank.Options:
    """A run of a second."""
    plan = {name: changes.pop(name) for name in ("shares", "state") if name in changes}
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
RUNS = {**{method: options(method) for method in METHODS},
        "text": options("ours-h2-int4", **TEXT), "resnet": options("ddp", model="resnet",
                                                                   size={"width": 2})}


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
            # of the library to the bit; DDP adds up in another order, and gives out rank 0's
            # statistics of a BatchNorm instead of the mean of all
            delta = {"ddp": 2e-5, "resnet": 1e-3}.get(name, 0)
            with self.subTest(name):
                made = converge_run.train_once(one)
                for here, there in zip(ends(made), ends(real[name]), strict=True):
                    self.assertAlmostEqual(here, there, delta=delta)


class Branches(unittest.TestCase):
    """Several lengths of one run."""

    def test_a_shorter_length_leaves_no_trace(self) -> None:
        for method, changes in (*((method, {}) for method in METHODS), ("ours-h2-int4", TEXT),
                                ("ddp", VGG), ("ours-h4-int2", VGG)):
            with self.subTest(method=method, **changes):
                whole = converge_run.train_once(options(method, **changes))
                alone = converge_run.train_once(options(method, **changes, shares=[1.0]))
                self.assertEqual(whole["eval_loss"][-1], alone["eval_loss"][-1])
                self.assertEqual(whole["bytes_per_rank"], alone["bytes_per_rank"])

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

    def test_the_rate_falls_to_zero_at_the_end_only(self) -> None:
        before = [converge_run.factor(step, 4, 10**9, 10**9) for step in range(80)]
        falling = [converge_run.factor(step, 4, 80, 100) for step in range(100)]
        self.assertEqual(before, falling[:80])
        self.assertEqual(falling[80:82], [1.0, 0.95])
        self.assertTrue(math.isclose(falling[-1], 0.05))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        as_rank(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        unittest.main()
