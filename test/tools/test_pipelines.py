#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/pipeline: what runs, how it is judged, the clock; with --msdu FILE and torch small runs.

    test_pipelines.py [--msdu build/bin/msdu] [unittest's own arguments]

Exit status 77 where torch is not installed.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

try:
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = ROOT / "bench" / "pipeline" / "compare.py"
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python_shim")]
MSDU = ""

from pipeline import adapt_rank, cases, clock, orders, report


class Orders(unittest.TestCase):
    def test_1f1b_is_torchs(self) -> None:
        """Against torch's own actions of a stage: warm-up, one each, the rest."""
        self.assertEqual(cases.order_1f1b(1, 2, 3), ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"])
        self.assertEqual(cases.order_1f1b(0, 2, 3), ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"])
        self.assertEqual(cases.order_1f1b(0, 4, 2), ["0F0", "0F1", "0B0", "0B1"])

    def test_two_stages_of_a_machine_have_its_layers(self) -> None:
        """The first and the last of a V, or one behind all others."""
        self.assertEqual(cases.halves([5, 2, 3], True), [3, 1, 2, 1, 1, 2])
        self.assertEqual(cases.halves([5, 2, 3], False), [3, 1, 2, 2, 1, 1])
        way = orders.of_torch("x", [2, 0], [3, 2], "zbv", 4)
        assert way is not None
        self.assertEqual((way.rows, way.ends()), ([0, 1, 1, 0], [(0, 2), (2, 3), (3, 4), (4, 5)]))
        self.assertIsNone(orders.of_torch("x", [0, 1], [3, 1], "zbv", 4))
        self.assertIsNone(orders.of_torch("x", [0, 1, 2], [2, 2, 2], "interleaved", 16))
        self.assertIsNotNone(orders.of_torch("x", [0, 1, 2], [2, 2, 2], "zbv", 16))

    def test_equal_layers(self) -> None:
        """None is left out."""
        self.assertEqual(cases.equal_counts(10, 4), [3, 3, 2, 2])


class Time:
    """A clock that only sleeping, and the test, move on."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """A little too long, as the kernel does."""
        self.now += seconds + 0.0002


class Clocks(unittest.TestCase):
    def setUp(self) -> None:
        self.time = Time()
        patched = mock.patch.object(clock, "time", self.time)
        patched.start()
        self.addCleanup(patched.stop)

    def test_layers_end_at_absolute_times(self) -> None:
        """What one oversleeps the next one makes up for; speed is a factor."""
        device = clock.Clock(2.0)
        device.open()
        for _ in range(10):
            device.spend(0.01)
        self.assertAlmostEqual(self.time.now, 100 + 0.05 + 0.0002)

    def test_a_late_layer_of_an_action_is_no_waiting(self) -> None:
        """However late."""
        device = clock.Clock(1.0)
        device.open()
        device.spend(0.01)
        self.time.now += 0.005
        device.spend(0.01)
        self.assertAlmostEqual(self.time.now, 100 + 0.02 + 0.0002)

    def test_waiting_stays(self) -> None:
        """A gap between two actions is none of the slack if it is longer than that."""
        device = clock.Clock(1.0)
        for gap in (0.0, 0.0001, 0.02):
            self.time.now += gap
            device.open()
            device.spend(0.01)
        self.assertAlmostEqual(self.time.now, 100 + 0.03 + 0.02 + 2 * 0.0002)

    def test_a_whole_backward_pass_takes_as_long_as_its_halves(self) -> None:
        """Gradients of inputs and of weights apart, and together; in the first layer, too."""
        device = clock.Clock(1.0)
        layers = [clock.ClockLayer(i, device, 0.01, 0.04) for i in range(3)]
        x = torch.zeros(1, 4)
        for given in (x, x.clone().requires_grad_()):
            begin, made = self.time.now, given
            for layer in layers:
                made = layer(made)
            self.assertAlmostEqual(self.time.now - begin, 0.03, delta=0.001)
            begin = self.time.now
            made.sum().backward()
            self.assertAlmostEqual(self.time.now - begin, 0.12, delta=0.001)
        made = x.clone().requires_grad_()
        output = layers[1](made)
        begin = self.time.now
        torch.autograd.grad(output.sum(), made)
        self.assertAlmostEqual(self.time.now - begin, 0.02, delta=0.001)


class Devices(unittest.TestCase):
    def setUp(self) -> None:
        self.time = Time()
        patched = mock.patch.object(clock, "time", self.time)
        patched.start()
        self.addCleanup(patched.stop)

    def test_noise_is_about_a_mean(self) -> None:
        """Which it leaves."""
        device = adapt_rank.Device(1.0, 0.2, 1)
        device.open()
        taken = []
        for _ in range(400):
            begin = self.time.now
            device.spend(0.01)
            taken.append(self.time.now - begin)
        self.assertAlmostEqual(statistics.fmean(taken), 0.01, delta=3e-4)
        self.assertAlmostEqual(statistics.stdev(taken), 0.002, delta=3e-4)

    def test_a_layer_that_is_probed_has_waited_for_nothing(self) -> None:
        """No engine opens the clock then. What one pass oversleeps the next one makes up for."""
        device = adapt_rank.Device(1.0, 0.0, 1)
        device.probe(True)
        for gap, wanted in ((0.02, 0.01), (0.003, 0.007), (0.02, 0.01)):
            self.time.now += gap
            begin = self.time.now
            device.spend(0.01)
            self.assertAlmostEqual(self.time.now - begin, wanted, delta=0.001)


def record(case: str, method: str, seconds: float, **more: Any) -> dict[str, Any]:
    """Of a clock run."""
    return {"run": f"clock-{case}-1", "kind": "clock", "case": case, "method": method,
            "seconds": [seconds, seconds, 9.0][:2], "predicted_s": 0.96 * seconds, "bound_s": None,
            "digest": "a", "counts": [1], "machines": [0], "processor": "p", "cores": 2,
            "torch": "2", "commit": "c", "date": "d", "load_before": 0.0, **more}


class Report(unittest.TestCase):
    def records(self, ours: float) -> list[dict[str, Any]]:
        """All cases: torch takes 3 s with equal layers and 2 s with our cuts."""
        found = []
        for name in cases.CASES:
            for method in cases.methods_of(name):
                seconds = ours if method in cases.OURS else 2.0 if "cuts" in method else 3.0
                found.append(record(name, method, 3 * ours if name == "equal" and method in
                                    cases.OURS else seconds))
        return found

    def test_targets(self) -> None:
        """Met, and missed by little."""
        told = report.targets(self.records(1.0))
        self.assertNotIn("missed", told)
        self.assertRegex(told, r"geometric mean \| >= 2.8 \| 3.00 \| met")
        told = report.targets(self.records(1.1))
        self.assertEqual(told.count("**missed**"), 2, told)
        self.assertRegex(told, r"geometric mean \| >= 2.8 \| 2.73 \| \*\*missed")
        self.assertRegex(told, r"equal, 1 Gbit/s \| >= 0.97 \| 0.91 \| \*\*missed")

    def test_a_prediction_may_be_off_by_a_tenth(self) -> None:
        """Not by more."""
        records = self.records(1.0)
        for one in records:
            one["predicted_s"] = 0.89
        self.assertIn("11 % | **missed**", report.targets(records))

    def test_other_bits_are_told(self) -> None:
        """But those of one micro-batch, which are others by nature."""
        same = self.records(1.0)
        naive = [{**one, "digest": "b"} if one["method"] == "naive" else one for one in same]
        self.assertEqual(report.unequal(naive), [])
        other = [{**one, "digest": "b"} if one["method"] == "cuts-zbv" else one for one in same]
        self.assertEqual(len(report.unequal(other)), 3)
        self.assertIn("**missed**", report.targets(other))

    def test_replicas_are_judged_by_the_pipeline_alone(self) -> None:
        """And by DDP; losses of equal steps stand beside each other."""
        found = [record("replicas", name, seconds, kind="replicas", steps=steps, parameters=10,
                        losses=[3.0 - i for i in range(steps)])
                 for name, seconds, steps in (("msdu", 1.0, 3), ("pipeline alone", 0.9, 2),
                                              ("pipeline + DDP", 3.1, 2))]
        told = report.text(found, cases.CASES)
        self.assertRegex(told, r"beside the pipeline alone \| <= 1.1 \| 1.11 \| \*\*missed")
        self.assertRegex(told, r"over pipeline \+ DDP \| >= 3 \| 3.10 \| met")
        self.assertRegex(told, r"\| msdu \| \[1\] \| 1.000 \| 3 \| 2.000 \| 1.000 \|")

    def test_adaptation_is_judged_by_the_plan_that_knew(self) -> None:
        """Moves after noise are told, too."""
        whole = {"kind": "adapt", "losses": [1.0, 0.5]}
        found = [record("adapt", name, seconds, **whole)
                 for name, seconds in (("adapt", 1.2), ("knew", 1.0), ("static", 3.0))]
        found[0].update(change=20, moved=[12, 28], counts_before=[2], machines_before=[3])
        noisy = record("noise", "noise", 0.1, kind="adapt", noise=0.2, moves=0, run="noise-1")
        told = report.text([*found, noisy], cases.CASES)
        self.assertRegex(told, r"beside the plan that knew \| <= 1.1 \| 1.20 \| \*\*missed")
        self.assertRegex(told, r"that stays, over that step \|  \| 2.50 \|")
        self.assertRegex(told, r"until layers moved \|  \| 12, 28 \|")
        self.assertRegex(told, r"20 % noise on every layer, 2 steps: moves \| 0 \| 0 \| met")
        self.assertIn("Before: 3:2. Layers moved 12, 28 steps after", told)
        found[0]["seconds"], noisy["moves"] = [1.09], 1
        told = report.targets([*found, noisy])
        self.assertRegex(told, r"beside the plan that knew \| <= 1.1 \| 1.09 \| met")
        self.assertRegex(told, r"moves \| 0 \| 1 \| \*\*missed")
        found[2]["losses"] = [1.0, 0.6]
        self.assertEqual(report.unequal([*found, noisy]), ["clock-adapt-1: static beside adapt"])

    def test_the_whole_report(self) -> None:
        """A table for each case, whatever is missing."""
        told = report.text(self.records(1.0), cases.CASES)
        for case in cases.CASES.values():
            self.assertIn(f"## Clock layers, {case.says}", told)
        self.assertIn("No records", report.text([], cases.CASES))
        report.text(self.records(1.0)[:3], cases.CASES)


class Command(unittest.TestCase):
    def call(self, *words: str, status: int = 0) -> str:
        """Output of compare.py."""
        done = subprocess.run([sys.executable, "-B", str(COMMAND), "--msdu", MSDU, *words],
                              capture_output=True, text=True, check=False, timeout=900)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_runs_with_records_are_not_missing(self) -> None:
        """A line that was cut off counts for nothing."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            whole = self.call("--list", "--out", folder)
            self.assertIn("missing: 16 runs", whole)
            (out / "records.jsonl").write_text(
                json.dumps(record("1124", "ours", 1.0)) + '\n{"run": "clock-1414-1", "ki',
                encoding="utf-8")
            left = self.call("--list", "--out", folder)
            self.assertIn("missing: 15 runs", left)
            self.assertNotIn("clock-1124-1", left)
            self.call("--report", "--out", folder)
            self.assertIn("ours", (out / "table.md").read_text(encoding="utf-8"))

    def test_small_runs_have_the_same_bits(self) -> None:
        """Of all methods and kinds, over the loopback."""
        told = self.call("--smoke")
        for name in cases.METHODS:
            if name not in ("cuts-interleaved", "cuts-zbv"):  # a machine has a single layer
                self.assertIn(f"| {name} |", told)
        for name in ("one process", "pipeline + DDP", "msdu", "adapt", "knew", "static"):
            self.assertIn(f"| {name} |", told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--msdu", default="")
    options, rest = parser.parse_known_args()
    MSDU = options.msdu
    if not MSDU:
        del Command
    unittest.main(argv=[sys.argv[0], *rest])
