#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The comparison over ranks of different speeds: its plan, tables, padded steps, and one run.

Exit status 77 where torch is not installed.
"""
from __future__ import annotations

import contextlib
import io
import pathlib
import signal
import sys
import tempfile
import time
import unittest
import unittest.mock

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from training import methods, models, pacing, record, store, uneven, uneven_plan, uneven_rank
from training import uneven_report

WANTED = uneven_plan.Wanted(("quarter",), ("cnn",), ("ddp", "asp"), seeds=2, steps=100)


def made_up(label: str, share: float, final: float, **changes: object) -> record.Record:
    """A record of a run that nobody made."""
    fields: record.Record = {
        name: {int: 1, float: 1.0, str: "x", list: []}[kinds[0]]
        for name, kinds in record.FIELDS.items()}
    fields |= {"part": "time", "case": "quarter", "label": label, "model": "cnn", "lr": 0.05,
               "share": share, "final": final, "metric": "accuracy", "seed": 1,
               "wall_s": 100.0 * share, "key": f"{label}-{share}-{final}-{changes}"}
    return {**fields, **changes}


def searched(label: str, *finals: float) -> list[record.Record]:
    """A search whose learning rates gave these."""
    return [made_up(label, 0.5, final, part="search", lr=lr, seed=0)
            for lr, final in zip((0.05, 0.1, 0.025), finals)]


DDP = [*searched("ddp", 3, 1, 2), made_up("ddp", 1.0, 30), made_up("ddp", 1.0, 32, seed=2)]


class Plan(unittest.TestCase):
    """Which run is next."""

    def runs(self, records: list[record.Record]) -> list[tuple[str, str, float, float, int]]:
        """All that is known."""
        return [(one.label, one.part, one.share, one.lr, one.seed)
                for one in uneven_plan.everything(records, WANTED)]

    def test_results_take_what_the_search_found(self) -> None:
        self.assertEqual({run[1] for run in self.runs([])}, {"search"})
        known = self.runs(DDP)
        self.assertIn(("ddp", "time", 1.0, 0.05, 2), known)
        self.assertNotIn("time", {run[1] for run in known if run[0] == "asp"})
        known = self.runs([*DDP, *searched("asp", 1, 2, 1)])
        self.assertEqual([run for run in known if run[:2] == ("asp", "time")],
                         [("asp", "time", 0.5, 0.1, 1), ("asp", "time", 0.5, 0.1, 2)])

    def test_shares_fall_while_ddps_result_is_reached(self) -> None:
        self.assertEqual(uneven_plan.next_share({}), 0.5)
        self.assertEqual(uneven_plan.next_share({0.5: True}), 0.35)
        self.assertEqual(uneven_plan.next_share({0.5: True, 0.35: True}), 0.25)
        self.assertIsNone(uneven_plan.next_share({0.5: True, 0.35: False}))
        self.assertEqual(uneven_plan.next_share({0.5: False}), 0.7)
        self.assertIsNone(uneven_plan.next_share({0.5: False, 0.7: True}))
        self.assertIsNone(uneven_plan.next_share({0.5: False, 0.7: False, 1.0: False}))
        self.assertIsNone(uneven_plan.next_share(dict.fromkeys(uneven_plan.SHARES, True)))

    def test_a_share_counts_with_all_its_seeds(self) -> None:
        records = [*DDP, *searched("asp", 1, 2, 1), made_up("asp", 0.5, 31.0)]
        self.assertEqual({run[2] for run in self.runs(records) if run[:2] == ("asp", "time")}, {0.5})
        records.append(made_up("asp", 0.5, 30.0, seed=2))  # mean 30.5; DDP's 31 less 1.41
        self.assertEqual({run[2] for run in self.runs(records) if run[:2] == ("asp", "time")},
                         {0.5, 0.35})

    def test_ddps_time_is_measured_once_it_is_known(self) -> None:
        self.assertAlmostEqual(uneven_plan.ddp_seconds([], WANTED, "quarter", "cnn"), 32)
        self.assertAlmostEqual(uneven_plan.ddp_seconds(DDP, WANTED, "quarter", "cnn"), 100)
        # eight ranks take turns on the cores of four
        self.assertEqual(WANTED.base_of("eighth", "cnn"), 2 * WANTED.base_of("quarter", "cnn"))

    def test_two_levels_need_hosts_of_several_ranks(self) -> None:
        self.assertFalse(uneven_plan.is_wanted("quarter", "two-level"))
        self.assertTrue(uneven_plan.is_wanted("hosts-4", "two-level"))
        self.assertTrue(uneven_plan.is_wanted("quarter", "asp"))

    def test_every_method_is_one(self) -> None:
        for entry in uneven_plan.METHODS.values():
            methods.expand(entry.method)


class Tables(unittest.TestCase):
    """From records to tables."""

    records = [*DDP, made_up("asp", 0.5, 31.0), made_up("asp", 0.25, 27.0),
               made_up("clock", 0.5, 20.0), made_up("ssp", 0.5, 33.0)]

    def test_time_is_between_the_points_around_ddps_result(self) -> None:
        text = uneven_report.table(self.records, "quarter", "cnn")
        # 31 less 1.41 is 2.59 of 4 points above 27: 0.25 and 0.65 of another 0.25
        self.assertIn("| asp | 0.05 | 1 | 0.41 | 59 | 27.00 in 0.25, 31.00 in 0.50 |", text)
        self.assertIn("| clock | 0.05 | 1 | not reached |  | 20.00 in 0.50 |", text)
        self.assertIn("| ssp | 0.05 | 1 | <= 0.50 | 50 |", text)
        self.assertIn("| ddp | 0.05 | 2 | 1.00 | 0 |", text)

    def test_a_case_stands_beside_its_aim(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            uneven_report.write(self.records, WANTED, pathlib.Path(folder))
            text = pathlib.Path(folder, "table.md").read_text()
            drawn = pathlib.Path(folder, "cnn-quarter.svg").exists()
        self.assertIn("16.9 to 82.1 % less (DASP) | >= 60 % less, no more than ASP's | ", text)
        self.assertRegex(text, r"no more than ASP's \|  \| no \|  \|  \|  \| 59 \| 50 \|")
        with contextlib.suppress(ImportError):
            import matplotlib  # noqa: F401
            self.assertTrue(drawn)

    def test_without_ddp_there_is_no_row(self) -> None:
        self.assertEqual(uneven_report.table([made_up("asp", 0.5, 1.0)], "quarter", "cnn"), "")


class Steps(unittest.TestCase):
    """Padded steps and shares."""

    def test_samples_by_speed_are_as_many_as_without(self) -> None:
        self.assertEqual(uneven_rank.oracle_batches([1, 1, 1, 1], 32), [32] * 4)
        self.assertEqual(uneven_rank.oracle_batches([1, 1, 1, 0.25], 32), [40, 39, 39, 10])
        for speeds in ([1, 0.8, 0.5, 0.25], [1] * 6 + [0.125] * 2, [1, 0.001]):
            given = uneven_rank.oracle_batches(speeds, 8)
            self.assertGreaterEqual(min(given), 1)
            self.assertEqual(given, sorted(given, reverse=True))
        self.assertEqual(sum(uneven_rank.oracle_batches([1, 0.8, 0.5, 0.25], 8)), 32)

    def test_a_step_takes_its_time_and_an_evaluation_none(self) -> None:
        model = models.build("cnn", 10, {"width": 4})
        made = pacing.Pacing(model, pacing.pace.Speed(0, 0.5), 0.05)
        x = torch.zeros(2, 3, 32, 32)
        slept: list[float] = []
        with unittest.mock.patch.object(time, "sleep", slept.append):
            model(x)
            self.assertEqual(slept, [])
            made.begin()
            loss = model(x).sum()
            forward = len(slept)
            loss.backward()
            made.end()
        layers = 4  # each once a pass
        self.assertEqual((forward, len(slept)), (layers, 2 * layers))
        made.begin(0.5)
        began = time.monotonic()
        model(x).sum().backward()
        made.end()
        self.assertGreaterEqual(time.monotonic() - began, 0.03)


class Command(unittest.TestCase):
    """uneven.py as a user calls it, but in this process."""

    def call(self, *words: str) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        output, errors = io.StringIO(), io.StringIO()
        before = signal.getsignal(signal.SIGTERM)
        with unittest.mock.patch.object(sys, "argv", ["program", *words]), \
                contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                status = uneven.main()
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                signal.signal(signal.SIGTERM, before)
        return status, output.getvalue(), errors.getvalue()

    def test_a_finished_run_is_not_repeated(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--out", folder, "--loopback", "--cases", "quarter,hosts-1", "--models", "cnn",
                     "--methods", "ddp", "--dataset", "synthetic", "--steps", "3", "--base-ms",
                     "5", "--samples", "256", "--test-samples", "16", "--seeds", "1"]
            _, before, _ = self.call(*words, "--list")
            self.assertIn("missing, as far as known: 3 runs", before)  # no shaped link: no hosts-1
            status, output, errors = self.call(*words, "--budget", "0.01")
            self.assertEqual(status, 0, errors)
            made = store.load_all(pathlib.Path(folder))
            self.assertEqual([one["steps_by_rank"] for one in made], [[3] * 4], output)
            self.assertEqual(made[0]["samples"], 3 * 4 * 32)
            self.assertIn("missing, as far as known: 2 runs", self.call(*words, "--list")[1])
            self.assertIn("1 new records", self.call(*words, "--pack")[1])
            self.assertIn("missing, as far as known: 2 runs", self.call(*words, "--list")[1])

    def test_bad_words_are_named(self) -> None:
        for words, named in ((["--cases", "x"], "--cases: 'x'"), (["--methods", "y"], "'y'"),
                             (["--models", "vgg"], "'vgg'")):
            status, _, errors = self.call("--out", "nowhere", "--list", *words)
            self.assertEqual(status, 2)
            self.assertIn(named, errors)
        self.assertIn("--out", self.call("--list")[2])


if __name__ == "__main__":
    unittest.main()
