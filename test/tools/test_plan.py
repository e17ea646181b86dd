#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Around `msdu plan`: the comparison with measured runs, and the drawings.

    test_plan.py --msdu build/bin/msdu
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[2] / "bench" / "overlap"
MSDU = ""
RUN = ["--profile", "resnet50", "--scale", "0.01", "--ratio", "1", "--rate-mbit", "900",
       "--latency-us", "100", "--slice-us", "80", "--up-to", "0"]


def script(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A script of bench, as a user runs it."""
    return subprocess.run([sys.executable, "-B", str(BENCH / name), *options], check=False,
                          capture_output=True, text=True, timeout=100)


def predicted(*options: str) -> list[dict[str, Any]]:
    """Records of msdu plan."""
    done = subprocess.run([MSDU, "plan", "--json", *RUN, *options], check=True,
                          capture_output=True, text=True, timeout=100)
    records: list[dict[str, Any]] = json.loads(done.stdout)
    return records


class Check(unittest.TestCase):
    """plan_check.py on runs that are the predictions themselves, made slower."""

    def measured(self, folder: str, factor: float, **fields: Any) -> str:
        """A file as overlap_table.py writes it; every step `factor` times as long as predicted."""
        records = [{
            "name": "overlap", "profile": "resnet50", "method": r["method"], "scale": 0.01,
            "comm_comp_ratio": 1.0, "ranks": 4, "cores": 2, "link_mbit": 900.0,
            "exchange_us": 200.0, "slice_cpu_us": 40.0, "interval": r["interval"],
            "compute_us": r["compute_us"], "bytes": r["bytes"],
            "step_us": factor * r.get("bench_step_us", r["step_us"]), **fields,
        } for r in predicted()]
        records.append({"name": "overlap", "method": "ddp"})
        path = Path(folder) / "runs.json"
        path.write_text(json.dumps(records), encoding="utf-8")
        return str(path)

    def check(self, folder: str, *options: str) -> subprocess.CompletedProcess[str]:
        return script("plan_check.py", "--msdu", MSDU, "--out", folder, *options)

    def test_finds_the_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for factor, status in ((1.0, 0), (1.05, 0), (1.25, 1)):
                done = self.check(folder, self.measured(folder, factor), "--no-drawing")
                self.assertEqual(done.returncode, status, done.stderr)
                rows = json.loads((Path(folder) / "plan_check.json").read_text(encoding="utf-8"))
                self.assertEqual(len(rows), 14)
                for row in rows:
                    self.assertAlmostEqual(row["error"], 1 / factor - 1, 6)
                    self.assertEqual(row["slice_us"], 80)

    def test_needs_a_latency_and_records(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self.measured(folder, 1.0, exchange_us=None)
            records = [{k: v for k, v in r.items() if v is not None}
                       for r in json.loads(Path(path).read_text(encoding="utf-8"))]
            Path(path).write_text(json.dumps(records), encoding="utf-8")
            done = self.check(folder, path, "--no-drawing")
            self.assertIn("need --latency-us", done.stderr)
            done = self.check(folder, path, "--no-drawing", "--latency-us", "100")
            self.assertEqual(done.returncode, 0, done.stderr)
            Path(path).write_text("[]", encoding="utf-8")
            self.assertIn("no record", self.check(folder, path).stderr)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
    def test_draws_the_same_file_twice(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self.measured(folder, 1.02)
            pictures = []
            for _ in range(2):
                self.assertEqual(self.check(folder, path).returncode, 0)
                pictures.append((Path(folder) / "plan_check.svg").read_bytes())
            self.assertEqual(pictures[0], pictures[1])


class Uneven(unittest.TestCase):
    """Hosts of several ranks, and ranks of different speeds."""

    def plan(self, *options: str, status: int = 0) -> str:
        """What the command says: its output, or its complaint."""
        done = subprocess.run([MSDU, "plan", "--up-to", "0", *options], check=False,
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr if status else done.stdout

    def ways(self, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Records of uneven ranks by way and wire."""
        records = json.loads(self.plan("--json", *options))
        return {(r["method"], r["wire"]): r for r in records if r["name"] == "uneven"}

    def test_one_rank_at_a_quarter(self) -> None:
        """On a fast link, exact training takes 4 steps, shares 4 / 3.25; the clock never waits."""
        found = self.ways("--hosts", "4x1", "--rate", "1000gbit", "--speeds", "1,1,1,.25",
                          "--latency-us", "0", "--passes", "0")
        step = {way: found[way, "float32"] for way in ("exact", "shares", "clock")}
        self.assertAlmostEqual(step["exact"]["step_us"], 4e5, delta=2e3)
        self.assertAlmostEqual(step["shares"]["step_us"], 4e5 / 3.25, delta=2e3)
        self.assertAlmostEqual(step["clock"]["step_us"], 1e5, delta=1e-3)
        self.assertAlmostEqual(step["clock"]["batches_us"], 4e5 / 3.25, delta=1e-3)
        self.assertEqual(step["exact"]["speeds"], "1,1,1,0.25")
        self.assertNotIn(("two-level", "float32"), found)

    def test_even_speeds_are_what_the_methods_say(self) -> None:
        options = ("--hosts", "4x2", "--rate", "1gbit", "--inner", "20gbit")
        records = json.loads(self.plan("--json", *options))
        found = self.ways(*options)
        for method, wire in (("free", "float32"), ("int4", "int4")):
            today = next(r for r in records if (r["name"], r["method"]) == ("method", method))
            self.assertEqual(found["exact", wire]["step_us"], today["step_us"])
            self.assertEqual(found["shares", wire]["bytes"], today["bytes"])
        self.assertLess(found["two-level", "float32"]["outer_bytes"],
                        found["exact", "float32"]["outer_bytes"])

    def test_hosts_are_another_way_to_say_ranks_and_nodes(self) -> None:
        new = json.loads(self.plan("--json", "--hosts", "2x8", "--rate", "2.5gbit", "--inner",
                                   "100gbit"))
        old = json.loads(self.plan("--json", "--ranks", "16", "--nodes", "2", "--rate-mbit",
                                   "2500", "--inner-rate-mbit", "100000"))
        self.assertEqual([r for r in new if r["name"] != "uneven"], old)

    def test_costs_of_this_machine_and_of_busy_cores(self) -> None:
        def int4(*options: str) -> float:
            return {r["method"]: float(r["step_us"]) for r in predicted(*options)}["int4"]
        self.assertNotEqual(int4("--here"), int4())
        self.assertGreater(int4("--taken", "4"), int4() + 100)

    def test_the_report_has_a_row_for_each_way(self) -> None:
        text = self.plan("--hosts", "2x8", "--inner", "100gbit", "--rate", "1gbit", "--speeds",
                         "1,1,.5,.25")
        self.assertIn("16 ranks on 2 machines, 1000 Mbit/s", text)
        self.assertIn("ranks of speeds 1,1,0.5,0.25", text)
        for way in ("exact", "shares", "clock", "two-level"):
            self.assertEqual(len([row for row in text.splitlines()
                                  if row.split()[:1] == [way]]), 2, text)
        self.assertNotIn("ranks of speeds", self.plan("--ranks", "4"))

    def test_bad_values_are_named(self) -> None:
        for bad in (("--hosts", "2"), ("--hosts", "2x0"), ("--hosts", "x8"), ("--hosts", "2x8x2"),
                    ("--hosts", "1.5x2"), ("--hosts", "-2x-2"), ("--hosts", "1000000x2"),
                    ("--rate", "5"), ("--rate", "mbit"), ("--inner", "-1gbit"),
                    ("--inner", "1tbit"), ("--rate", "nanmbit"), ("--speeds", "1,,1"),
                    ("--speeds", "1,0"), ("--speeds", ""), ("--speeds", "1,nan"),
                    ("--speeds", "1," * 64 + "1")):
            self.assertIn(f"'{bad[1]}'", self.plan(*bad, status=2))
        complaint = self.plan("--hosts", "2x2", "--speeds", "1,1,1", status=2)
        self.assertIn("3 speeds do not divide 4 ranks", complaint)


class Optimizer(unittest.TestCase):
    """What the controller may choose follows from the optimizer, as in the library."""

    def choice(self, *options: str) -> tuple[int, str]:
        """Interval and wire at a ratio of 10, where codes take little."""
        done = subprocess.run([MSDU, "plan", "--json", "--profile", "resnet50", "--ratio", "10",
                               "--passes", "0.1", "--up-to", "0", *options], check=True,
                              capture_output=True, text=True, timeout=100)
        record = next(r for r in json.loads(done.stdout) if r["name"] == "controller")
        return record["interval"], record["wire"]

    def test_sgd_sends_sparse_gradients_before_local_steps(self) -> None:
        self.assertEqual(self.choice("--optimizer", "sgd"), (1, "sparse"))
        self.assertEqual(self.choice("--settings", "optimizer=sgd"), (1, "sparse"))
        for other in ("unknown", "adam"):
            self.assertEqual(self.choice("--optimizer", other), (2, "int2"))
        self.assertEqual(self.choice(), (2, "int2"))

    def test_others_are_named(self) -> None:
        done = subprocess.run([MSDU, "plan", "--optimizer", "lion"], check=False,
                              capture_output=True, text=True, timeout=100)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no optimizer 'lion'", done.stderr)


class Draw(unittest.TestCase):
    """plan_draw.py."""

    def test_refuses_what_is_no_plan(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.json"
            path.write_text("[{\"name\": \"other\"}]", encoding="utf-8")
            done = script("plan_draw.py", str(path), "--out", f"{folder}/x.svg")
            self.assertEqual(done.returncode, 1)
            self.assertIn("no record of msdu plan", done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
    def test_draws_methods_and_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            path.write_text(json.dumps(predicted("--up-to", "16")), encoding="utf-8")
            done = script("plan_draw.py", str(path), "--out", f"{folder}/plan.svg")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("<svg", (Path(folder) / "plan.svg").read_text(encoding="utf-8"))


def main() -> int:
    """Runs the cases."""
    global MSDU
    parser = argparse.ArgumentParser()
    parser.add_argument("--msdu", required=True)
    args = parser.parse_args()
    MSDU = args.msdu
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
