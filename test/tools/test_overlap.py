#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Around `msdu bench overlap`: PyTorch's DDP replays the same step, timelines hold both computing
and slices, tables are made. Exit 77: no torch (only what needs it is skipped, with --torch).

    test_overlap.py --msdu build/bin/msdu [--torch]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[2] / "bench" / "overlap"
SMALL = ["--profile", "bert-large", "--scale", "0.0002", "--ratio", "2", "--link-mbit", "800"]
MSDU = ""


def run(*command: str, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def ours(folder: str, *options: str) -> list[dict[str, Any]]:
    """Records of a short run of two ranks."""
    path = Path(folder) / "ours.json"
    run(MSDU, "bench", "overlap", "--smoke", "--ranks", "2", *SMALL, *options, "--json", str(path))
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return records


class Timeline(unittest.TestCase):
    """What --trace writes, and overlap_draw.py makes of it."""

    def test_bad_input_is_named(self) -> None:
        for path, missing in (("t-%m.json", "%r"), ("t-%r.json", "%m"), ("t", "%m and %r")):
            done = subprocess.run([MSDU, "bench", "overlap", "--trace", path],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, missing)
            self.assertIn("needs %m and %r", done.stderr)
        sys.path.insert(0, str(BENCH))
        import overlap_draw
        events = [{"cat": "compute", "args": {"step": step}} for step in (3, 4)]
        with self.assertRaisesRegex(SystemExit, "steps 16 to 17; the trace has 3 to 4"):
            overlap_draw.spans_of(events, 16, 2)

    def test_holds_computing_and_slices_on_one_clock(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            records = ours(folder, "--methods", "free", "--steps", "6",
                           "--trace", f"{folder}/t-%m-%r.json")
            self.assertEqual([r["method"] for r in records], ["blocking", "free"])
            merged = Path(folder) / "merged.json"
            run(sys.executable, str(BENCH / "overlap_draw.py"), f"{folder}/t-free-1.json",
                "--merge", str(merged))
            events = json.loads(merged.read_text(encoding="utf-8"))
        backward = [e for e in events if e.get("cat") == "compute" and e["name"].startswith("B ")]
        slices = [e for e in events if e.get("cat") == "link"]
        self.assertEqual(len(backward), 50 * len({e["args"]["step"] for e in backward}))
        self.assertGreater(len(slices), 0)
        # no slice is under way before the first backward pass of a layer has ended
        first = min(e["ts"] + e["dur"] for e in backward)
        self.assertGreaterEqual(min(e["ts"] for e in slices), first - 1)


class Overlap(unittest.TestCase):
    """Slices travel under the backward pass, seen in the trace: it is easily lost unnoticed."""

    def share_under_backward(self, folder: str, method: str) -> float:
        """Slices that were reduced before their step's backward pass had ended."""
        trace = Path(folder) / f"t-{method}-0.json"
        events = json.loads(trace.read_text(encoding="utf-8"))
        compute = json.loads(Path(f"{trace}.compute").read_text(encoding="utf-8"))
        backward = [(e["ts"], e["ts"] + e["dur"]) for e in compute
                    if e.get("cat") == "compute" and e["name"].startswith("B ")]
        slices = [e for e in events if e.get("cat") == "link"]
        layers = 50  # spans of a backward pass, in the order of time
        passes = [(backward[i][0], backward[i + layers - 1][1])
                  for i in range(0, len(backward), layers)]
        under = [e for e in slices
                 if any(begin < e["ts"] and e["ts"] + e["dur"] < end for begin, end in passes)]
        return len(under) / len(slices)

    def test_slices_leave_before_the_backward_pass_is_over(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # computing takes fifty times as long as the exchange, 130 ms a step
            ours(folder, "--methods", "blocking,slices", "--bytes", "8192", "--ratio", "0.02",
                 "--trace", f"{folder}/t-%m-%r.json")
            self.assertEqual(self.share_under_backward(folder, "blocking"), 0)
            self.assertGreater(self.share_under_backward(folder, "slices"), 0.5)


class Default(unittest.TestCase):
    """overlap_default.py: the default beside fixed choices."""

    def setUp(self) -> None:
        sys.path.insert(0, str(BENCH))
        import overlap_default
        self.script = overlap_default

    def records(self, default: float, **steps: float) -> list[dict[str, Any]]:
        return [{"method": method, "step_us": step, "interval": 1, "wire": "int8"}
                for method, step in {**steps, "defaults": default}.items()]

    def test_a_row_is_good_within_both_bounds(self) -> None:
        for default, is_good in ((100, True), (103, False), (88, True), (89, False)):
            int4 = 80 if default < 100 else 100
            row, found = self.script.row_of("default-20-2ranks-ratio4", self.records(
                default, slices=100, int4=int4, blocking=1))
            self.assertEqual(found, is_good, row)
            self.assertIn(f"| {default / 100:.3f} | {default / int4:.3f} |", row)
            self.assertTrue(row.startswith("| 20-2ranks-ratio4 |"))

    def test_the_grid_fits_the_budget(self) -> None:
        for budget in (25, 30, 120):
            args = argparse.Namespace(links="loopback,10000,1000,200,20", ranks="2,4",
                                      ratios="1,4,0.25,16")
            left = 60.0 * budget
            grid = self.script.cases(args)
            self.assertEqual(len({case.name for case in grid}), 40)
            for i, case in enumerate(grid):
                scale = self.script.scale_of(case, 0.9 * left / (len(grid) - i), 6)
                taken = self.script.seconds_of(case, scale, 6)
                self.assertLess(taken, left, case)
                left -= taken

    def test_names_are_in_order(self) -> None:
        names = ["default-loopback-2ranks-ratio4", "default-1000-2ranks-ratio0.25",
                 "default-20-4ranks-ratio16", "default-20-2ranks-ratio16"]
        self.assertEqual(sorted(names, key=self.script.natural), names[::-1][:3] + names[:1])

    def test_measures_over_the_loopback_and_reports(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text = run(sys.executable, str(BENCH / "overlap_default.py"), "--msdu", MSDU, "--out",
                       folder, "--links", "loopback", "--ratios", "4", "--ranks", "2",
                       "--methods", "slices,int4", "--budget", "0.25")
            self.assertIn("| loopback-2ranks-ratio4 |", text)
            again = run(sys.executable, str(BENCH / "overlap_default.py"), "--out", folder,
                        "--report")
            self.assertEqual(text, again)

    def test_bad_options_are_named(self) -> None:
        for bad in (("--links", "fast"), ("--links", "0"), ("--methods", "int4"),
                    ("--methods", "slices,free")):
            done = subprocess.run([sys.executable, str(BENCH / "overlap_default.py"), *bad],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(bad[0], done.stderr)


class Priority(unittest.TestCase):
    """Without a barrier, what is needed first overtakes what was ready first."""

    def profile(self, folder: str) -> str:
        """32 equal layers, of a slice each."""
        path = Path(folder) / "equal.json"
        layers = [{"name": f"layer{i}", "forward_us": 1000, "backward_us": 2000,
                   "tensors": [{"name": f"tensor{i}", "count": 65536}]} for i in range(32)]
        path.write_text(json.dumps({"format": "msdu-profile-1", "name": "equal",
                                    "layers": layers}), encoding="utf-8")
        return str(path)

    def last_share(self, folder: str, method: str) -> float:
        """Share of the last rounds in which the first layer's slice left last of all."""
        events = json.loads(Path(f"{folder}/t-{method}-0.json").read_text(encoding="utf-8"))
        slices = sorted((e for e in events if e.get("cat") == "link"), key=lambda e: e["ts"])
        rounds: dict[int, list[str]] = {}
        for e in slices:
            rounds.setdefault(e["args"]["round"], []).append(e["name"])
        late = [names for number, names in sorted(rounds.items()) if len(names) == 32][-8:]
        return sum("tensor0" in names[-1] for names in late) / len(late)

    def test_first_layer_overtakes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # the link takes four times as long as computing, so a queue builds up
            run(MSDU, "bench", "overlap", "--ranks", "2", "--profile", self.profile(folder),
                "--scale", "1", "--ratio", "4", "--bytes", "262144", "--methods",
                "free-fifo,free", "--warmup", "40", "--steps", "16",
                "--trace", f"{folder}/t-%m-%r.json")
            self.assertEqual(self.last_share(folder, "free-fifo"), 1)
            self.assertLess(self.last_share(folder, "free"), 0.5)


class Peer(unittest.TestCase):
    """DDP over gloo."""

    def test_replays_the_same_step(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            mine = ours(folder, "--methods", "blocking")[0]
            path = Path(folder) / "ddp.json"
            port = free_port()
            processes = [subprocess.Popen(
                [sys.executable, "-B", str(BENCH / "overlap_ddp.py"), *SMALL, "--steps", "3",
                 "--warmup", "2", "--json", str(path)],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                     "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(2)]
            for process in processes:
                self.addCleanup(process.kill)
            self.assertEqual([p.wait(100) for p in processes], [0, 0])
            peer = json.loads(path.read_text(encoding="utf-8"))[0]
        self.assertEqual(peer["wrong"], 0)
        self.assertEqual(peer["bytes"], 4 * mine["parameters"])  # two ranks: each byte once
        for field in ("compute_us", "comm_comp_ratio"):
            self.assertAlmostEqual(peer[field] / mine[field], 1, 6)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Table(unittest.TestCase):
    """overlap_table.py without its laboratory."""

    def test_has_a_row_for_each_method(self) -> None:
        spec = importlib.util.spec_from_file_location("table", BENCH / "overlap_table.py")
        assert spec is not None and spec.loader is not None
        table = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(table)
        record = {"method": "free", "step_us": 2e3, "bound_us": 1e3, "exposed_share": 0.25,
                  "link_use": 0.5, "bytes": 3e6, "cpu_us": 100.0}
        ddp = {**record, "method": "ddp", "step_us": 4e3, "bound_us": None}
        text = table.table_of([record, ddp])
        self.assertIn("| free | 2.0 | 2.000 | 0.500 | 25.0 % | 0.500 | 3.00 | 0.1 |", text)
        self.assertIn("| ddp | 4.0 |  | 1.000 |", text)
        self.assertAlmostEqual(table.payload_mbit(1000, 9000), 992.678, 3)


def main() -> int:
    """Runs the cases asked for; 77 where torch is missing."""
    global MSDU
    parser = argparse.ArgumentParser()
    parser.add_argument("--msdu", required=True)
    parser.add_argument("--torch", action="store_true", help="only what needs torch")
    args = parser.parse_args()
    MSDU = args.msdu
    if args.torch and importlib.util.find_spec("torch") is None:
        print("skipped: no torch")
        return 77
    cases = [Peer] if args.torch else [Timeline, Overlap, Default, Priority, Table]
    loader = unittest.defaultTestLoader
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
