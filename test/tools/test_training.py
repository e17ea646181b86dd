#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training comparison: every method that needs only torch trains, records, bytes, plan.

Exit status 77 where torch is not installed. Synthetic data, two ranks, a few steps.
"""
from __future__ import annotations

import contextlib
import gc
import io
import json
import lzma
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from collections.abc import Callable

try:
    import numpy as np
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from training import daso, data, launch, methods, models, outcome, plan, rank, record, report, store
from training import train, train_table

STEPS = 4


def options(method: str, **changes: object) -> rank.Options:
    """A run of seconds."""
    chosen = {
        "model": "cnn", "dataset": "synthetic", "method": method, "data": None, "cache": None,
        "seed": 1, "lr": 0.05, "batch": 8, "epochs": 1, "samples": 16 * STEPS, "test_samples": 32,
        "steps": 0, "evaluations": 2, "optimizer": "sgd", "weight_decay": 0.0, "warmup": 0.0,
        "size": {"width": 4}, "settings": {}, "device": "cpu", "threads": 1}
    return rank.Options(**{**chosen, **changes})  # type: ignore[arg-type]


RUNS: dict[str, rank.Options] = {
    "ddp": options("ddp"), "none": options("none"), "local-1": options("local-1"),
    "ddp-wide": options("ddp", size={"width": 16}), "ddp-fp16": options("ddp-fp16"),
    "powersgd": options("powersgd", settings={"rank": "1", "start": "2"}),
    "postlocal": options("postlocal", settings={"period": "2", "warmup": "2"}),
    "hierarchical": options("hierarchical", settings={"outer": "2", "warmup": "0"}),
    "daso-warm": options("daso-rule", settings={"warmup": "100"}),
    "daso-host": options("daso-rule", settings={"per_host": "2", "wait": "0", "skips": "100"}),
    "daso": options("daso-rule", settings={"skips": "2"}),
    "ssp-0": options("ssp", settings={"bound": "0"}),
    "nsoft-all": options("nsoft", settings={"count": "2"}),
    "asp": options("asp"), "staleness": options("staleness"), "dssp": options("dssp"),
    "gpt": options("ddp", model="gpt", dataset="synthetic-text", optimizer="adamw", lr=1e-2,
                   size={"width": 16, "layers": 1, "heads": 2}),
}


def as_rank(number: int, store: str, results: str) -> None:
    """All of RUNS as one of two ranks, one after another in the same processes."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    found = {name: rank.train_once(one) for name, one in RUNS.items()}
    if number == 0:
        pathlib.Path(results).write_text(json.dumps(found))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


class Runs(unittest.TestCase):
    """Whole runs of two processes."""

    found: dict[str, record.Record]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, "--rank"]
            ranks = [subprocess.Popen([*words, str(number), f"{folder}/store", f"{folder}/found"])
                     for number in range(2)]
            try:
                codes = [one.wait(300) for one in ranks]
            finally:
                for one in ranks:
                    one.kill()
            assert codes == [0, 0], codes
            cls.found = json.loads(pathlib.Path(folder, "found").read_text())

    def test_plain_allreduce_sends_what_the_formula_says(self) -> None:
        made = {**self.found["ddp-wide"], "ranks": 2}
        self.assertGreaterEqual(made["bytes_per_rank"], outcome.plain_bytes(made))
        self.assertLess(made["bytes_per_rank"], 1.2 * outcome.plain_bytes(made) + 4096)

    def test_without_exchange_hardly_anything_is_sent(self) -> None:
        self.assertLess(self.found["none"]["bytes_per_rank"], 2048)

    def test_every_method_trains_all_steps(self) -> None:
        for name, made in self.found.items():
            with self.subTest(name):
                self.assertEqual(made["steps"], STEPS)
                self.assertEqual(len(made["eval_loss"]), 2)
                self.assertTrue(np.isfinite(made["eval_loss"]).all())

    def test_averaging_every_step_equals_ddp(self) -> None:
        # SGD is linear in the gradient, so both give the same parameters up to rounding
        ddp, local = self.found["ddp"], self.found["local-1"]
        for one, other in zip(ddp["eval_loss"], local["eval_loss"]):
            self.assertAlmostEqual(one, other, places=4)
        self.assertNotAlmostEqual(self.found["none"]["eval_loss"][-1], ddp["eval_loss"][-1], 4)

    def test_daso_that_averages_at_once_equals_ddp(self) -> None:
        # between hosts parameters are averaged in every step, inside one gradients
        for name in ("daso-warm", "daso-host"):
            for one, other in zip(self.found["ddp"]["eval_loss"], self.found[name]["eval_loss"]):
                self.assertAlmostEqual(one, other, places=4, msg=name)
        self.assertNotAlmostEqual(self.found["daso"]["eval_loss"][-1],
                                  self.found["ddp"]["eval_loss"][-1], places=5)

    def test_a_server_that_waits_for_all_equals_ddp(self) -> None:
        for name in ("ssp-0", "nsoft-all"):
            for one, other in zip(self.found["ddp"]["eval_loss"], self.found[name]["eval_loss"]):
                self.assertAlmostEqual(one, other, places=5, msg=name)
            self.assertEqual(self.found[name]["server_most_ahead"], 0)

    def test_a_server_gets_and_gives_each_parameter_once_in_a_step(self) -> None:
        # a rank sends half of its update, and the other rank its half of the values
        made = {**self.found["asp"], "ranks": 2}
        self.assertGreaterEqual(made["bytes_per_rank"], outcome.plain_bytes(made))
        self.assertLess(made["bytes_per_rank"], 1.2 * outcome.plain_bytes(made) + 30000)

    def test_text_model_learns(self) -> None:
        self.assertEqual(self.found["gpt"]["metric"], "loss")
        self.assertLess(self.found["gpt"]["eval_loss"][-1], np.log(11))


class Commands(unittest.TestCase):
    """train.py and train_table.py as a user calls them, but in this process."""

    def call(self, main: Callable[[], int], *words: str) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        output, errors = io.StringIO(), io.StringIO()
        before = signal.getsignal(signal.SIGTERM)
        with unittest.mock.patch.object(sys, "argv", ["program", *words]), \
                contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                status = main()
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                signal.signal(signal.SIGTERM, before)
        return status, output.getvalue(), errors.getvalue()

    def test_a_failing_rank_ends_the_run_with_its_words(self) -> None:
        with self.assertRaisesRegex(launch.RunFailed, "has no setting color"):
            launch.run(options("ddp", settings={"color": "red"}), 2, 0, seconds=100)

    def test_a_python_without_torch_is_told(self) -> None:
        for name in ("train.py", "train_table.py"):
            script = pathlib.Path(train.__file__).with_name(name)
            words = [sys.executable, "-S", str(script), "--out", "nowhere"]
            ended = subprocess.run(words, capture_output=True, text=True, check=False)
            self.assertEqual(ended.returncode, 1)
            self.assertRegex(ended.stderr, "^No module named .*: this Python cannot run it")

    def test_missing_data_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            status, _, errors = self.call(train.main, "--data", folder, "--model", "cnn")
        self.assertEqual(status, 2)
        self.assertIn("cifar-100-binary.tar.xz", errors)

    def test_a_finished_run_is_not_repeated(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = ["--out", folder, "--models", "cnn:synthetic", "--ranks", "2", "--parts",
                     "search", "--methods", "ddp", "--epochs", "1", "--samples", "64",
                     "--test-samples", "16"]
            status, first, errors = self.call(train_table.main, *words, "--budget", "0.01")
            self.assertEqual(status, 0, errors)
            rows = first.count("search cnn ddp")
            self.assertGreaterEqual(rows, 1)
            table = (pathlib.Path(folder) / "table.md").read_text()
            self.assertIn("| search | lr | epochs | seed | accuracy |", table)
            _, listed, _ = self.call(train_table.main, *words, "--list")
            self.assertEqual(listed.count("search cnn ddp") + rows, len(plan.RATES["cnn"]))
            # nor after its record was packed, and the tables stay as they are
            status, told, errors = self.call(train_table.main, *words, "--pack")
            self.assertEqual(status, 0, errors)
            self.assertIn(f"{rows} new records in {folder}/{store.PACKED}", told)
            self.assertEqual(list(pathlib.Path(folder, store.SINGLE).iterdir()), [])
            self.assertEqual(self.call(train_table.main, *words, "--list")[1], listed)
            self.call(train_table.main, *words, "--report")
            self.assertEqual((pathlib.Path(folder) / "table.md").read_text(), table)

    def test_seeds_and_ratios_can_be_chosen(self) -> None:
        pace = made_up("none", 0.0, purpose="pace", step_median_s=0.1, parameters=10 ** 6)
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch("os.geteuid", return_value=0):
            store.save(pace, pathlib.Path(folder))
            words = ["--out", folder, "--models", "cnn", "--list"]
            rows = [row.split() for row in self.call(train_table.main, *words)[1].splitlines()]
            self.assertEqual({row[4] for row in rows}, {"0", "1", "2", "3"})
            ratios = {row[-1] for row in rows if row[1] in ("step", "whole")}
            self.assertEqual(ratios, {"480", "120", "30", "1920"})
            words += ["--seeds", "1", "--ratios", "4,16"]
            rows = [row.split() for row in self.call(train_table.main, *words)[1].splitlines()]
            self.assertEqual({row[4] for row in rows}, {"0", "1"})
            ratios = {row[-1] for row in rows if row[1] in ("step", "whole")}
            self.assertEqual(ratios, {"120", "30"})


class Parts(unittest.TestCase):
    """What needs no second process."""

    def test_shards_are_disjoint_and_repeat(self) -> None:
        every = [data.Shards(100, 4, r, 5, seed=3) for r in range(4)]
        numbers = torch.cat([one.order(2).flatten() for one in every])
        self.assertEqual(len(numbers.unique()), 100)
        self.assertTrue(torch.equal(every[1].order(2), data.Shards(100, 4, 1, 5, 3).order(2)))
        self.assertFalse(torch.equal(every[1].order(2), every[1].order(3)))

    def test_augmentation_moves_or_mirrors_pixels(self) -> None:
        image = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
        image[0, 0, 16, 10] = 200
        seen = set()
        for seed in range(200):
            moved = data.augmented(image, torch.Generator().manual_seed(seed))
            row, column = (moved[0, 0] == 200).nonzero()[0].tolist()
            self.assertEqual(int(moved.sum()), 200)
            seen.add((row, column))
            self.assertTrue(12 <= row <= 20 and (6 <= column <= 14 or 17 <= column <= 25))
        self.assertGreater(len(seen), 60)

    def test_cifar_is_read_from_official_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            for name, count in (("train.bin", 4), ("test.bin", 2)):
                rows = [bytes([9, i]) + bytes([i]) * 3072 for i in range(count)]
                (place / name).write_bytes(b"".join(rows))
            loaded = data.load("cifar100", folder)
            self.assertEqual(loaded.train.x.shape, (4, 3, 32, 32))
            self.assertEqual(np.asarray(loaded.train.y).tolist(), [0, 1, 2, 3])
            self.assertEqual(int(loaded.test.x[1].max()), 1)
            (place / "train.bin").write_bytes(b"short")
            shutil.rmtree(place / ".msdu-cache")
            with self.assertRaisesRegex(data.MissingData, "whole number of records"):
                data.load("cifar100", folder)

    def test_coarse_labels_are_those_beside_the_fine_ones(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            labels = [(3, 77), (19, 2)]
            raw = b"".join(bytes([coarse, fine]) + bytes(3072) for coarse, fine in labels)
            for name in ("train.bin", "test.bin"):
                pathlib.Path(folder, name).write_bytes(raw)
            fine, coarse = (data.load(name, folder) for name in ("cifar100", "cifar100-coarse"))
        self.assertEqual((fine.test.y.tolist(), coarse.test.y.tolist()), ([77, 2], [3, 19]))
        self.assertEqual(coarse.classes, 20)

    def test_digits_are_padded_and_left_as_they_are(self) -> None:
        rng = np.random.default_rng(1)
        digits = rng.integers(0, 256, (2, 28, 28), np.uint8)
        with tempfile.TemporaryDirectory() as folder:
            for key, name in data.MNIST_FILES.items():
                content = bytes(16) + digits.tobytes() if key.endswith("x") else bytes(8) + b"\4\7"
                pathlib.Path(folder, name).write_bytes(content)
            made = data.load("mnist", folder)
            x, y = data.batch_of(made.train, torch.tensor([1, 0]), torch.Generator())
            with self.assertRaisesRegex(data.MissingData, "mnist-idx.tar.xz"):
                data.load("mnist", f"{folder}/.msdu-cache", f"{folder}/none")
        self.assertEqual(y.tolist(), [7, 4])
        expected = (torch.from_numpy(digits[1]).float() - 120) / 65
        for plane in range(3):
            self.assertTrue(torch.equal(x[0, plane, 2:30, 2:30], expected))

    def test_the_librarys_sources_are_text_for_training_and_other_text_for_testing(self) -> None:
        made = data.load("stdlib", None)
        self.assertTrue(made.is_text)
        self.assertGreater(len(made.train), 10 * len(made.test))
        self.assertGreater(len(made.test), 100000)
        self.assertIn(b"import ", made.test.x[:20000].tobytes())
        self.assertEqual(made.test.x[:200].tobytes(),
                         data.load("stdlib", None).test.x[:200].tobytes())

    def test_text_is_the_same_in_letters_and_in_bytes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "tinyshakespeare.txt").write_bytes(b"To be, or not" * 10)
            letters, made = (data.load(name, folder, folder)
                             for name in ("shakespeare", "shakespeare-bytes"))
        self.assertEqual(made.train.x[:13].tobytes(), b"To be, or not")
        self.assertEqual((letters.classes, made.classes), (9, 256))
        self.assertEqual(len(letters.test), len(made.test))

    def test_models_have_many_and_few_bytes_per_operation(self) -> None:
        sizes = {name: sum(p.numel() for p in models.build(name, 100, {}).parameters())
                 for name in models.KINDS}
        self.assertGreater(sizes["vgg"], 10 * sizes["cnn"])
        paper = models.build("resnet", 10, {"depth": 20, "width": 16})
        self.assertEqual(sum(p.numel() for p in paper.parameters()), 269722)  # 0.27 M in the paper
        self.assertGreater(sizes["resnet18"], 11e6)

    def test_names_of_methods(self) -> None:
        self.assertEqual(methods.expand("local-16"), ("local", {"period": "16"}))
        self.assertEqual(methods.expand("ours-h4-int4")[1]["wire"], "int4")
        self.assertEqual(methods.expand("ours-h4-int4-block")[1]["overlap"], "blocking")
        with self.assertRaises(ValueError):
            methods.expand("ours-h4-int5")


def made_up(method: str, final: float, seed: int = 1, **changes: object) -> record.Record:
    """A record as a run would give it."""
    fields = {name: kinds[0]() for name, kinds in record.FIELDS.items()}
    fields |= {
        "purpose": "accuracy", "model": "cnn", "dataset": "cifar100", "method": method,
        "seed": seed, "lr": 0.05, "ranks": 4, "steps": 100, "parameters": 1000, "final": final,
        "metric": "accuracy", "eval_samples": [50, 100], "eval_accuracy": [final / 2, final],
        "eval_loss": [1.0, 1.0], "eval_train_loss": [1.0, 1.0], "eval_bytes": [1, 2],
        "eval_seconds": [1.0, 2.0], "bytes_per_rank": 600000, "ratio": None,
        "key": f"{method}-{seed}-{final}"}
    return {**fields, **changes}


class Daso(unittest.TestCase):
    """heat's way to merge parameters that come late."""

    def test_merges_as_heat_does(self) -> None:
        """By the lines of _gs_rcv_update_params(): param *= numer / denom; param += sum / denom."""
        made = np.random.default_rng(1)
        own, sent = made.normal(size=5), made.normal(size=(3, 5))
        for waited, numer in ((0, 1.0), (1, 2.0), (4, 8.0)):
            denom = float(len(sent) + numer)
            wanted = own * (numer / denom) + sent.sum(0) / denom
            found = daso.merged(torch.tensor(own), torch.tensor(sent.sum(0)), 3, waited)
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


class Packing(unittest.TestCase):
    """Records in one compressed file, and single ones beside it."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)
        self.records = [made_up("ddp", 30.0, seed, key=f"ddp-{seed}", started=f"2026-{9 - seed}")
                        for seed in (3, 1, 2)]  # the oldest first

    def test_packed_and_single_records_are_read_together(self) -> None:
        for one in self.records[:2]:
            store.save(one, self.out)
        self.assertEqual(store.pack(self.out), 2)
        self.assertEqual(store.pack(self.out), 0)
        store.save(self.records[2], self.out)
        oldest_first = sorted(self.records, key=lambda one: str(one["started"]))
        self.assertEqual(store.load_all(self.out), oldest_first)
        self.assertEqual(store.pack(self.out), 1)
        self.assertEqual(store.load_all(self.out), oldest_first)
        self.assertEqual(list((self.out / store.SINGLE).iterdir()), [])
        self.assertEqual([file.name for file in self.out.iterdir() if file.is_file()],
                         [store.PACKED])

    def test_bytes_do_not_depend_on_the_order_of_packing(self) -> None:
        for one in self.records:
            store.save(one, self.out)
        store.pack(self.out)
        at_once = (self.out / store.PACKED).read_bytes()
        (self.out / store.PACKED).unlink()
        for one in reversed(self.records):
            store.save(one, self.out)
            store.pack(self.out)
        self.assertEqual((self.out / store.PACKED).read_bytes(), at_once)
        lines = lzma.decompress(at_once).decode().splitlines()
        self.assertEqual([json.loads(line)["key"] for line in lines], ["ddp-1", "ddp-2", "ddp-3"])

    def test_a_run_that_was_repeated_takes_the_place_of_the_packed_one(self) -> None:
        store.save(self.records[0], self.out)
        store.pack(self.out)
        again = {**self.records[0], "final": 31.0}
        store.save(again, self.out)
        self.assertEqual(store.load_all(self.out), [again])
        self.assertEqual(store.pack(self.out), 1)
        self.assertEqual(store.load_all(self.out), [again])

    def test_nothing_is_lost_to_a_bad_file(self) -> None:
        file = store.save(self.records[0], self.out)
        (self.out / store.PACKED).write_bytes(b"no archive")
        for bad in (store.pack, store.load_all):
            with self.assertRaisesRegex(ValueError, store.PACKED):
                bad(self.out)
        (self.out / store.PACKED).unlink()
        (self.out / store.SINGLE / "bad.json").write_text(json.dumps({"key": "bad"}))
        with self.assertRaisesRegex(ValueError, "bad.json: version is missing"):
            store.pack(self.out)
        self.assertTrue(file.exists())

    def test_why_a_run_failed_stays_beside_the_records(self) -> None:
        store.save(self.records[0], self.out)
        store.failed(self.out, "x").write_text("accuracy cnn x\nno memory\n")
        store.pack(self.out)
        self.assertEqual(store.failures(self.out), [store.failed(self.out, "x")])
        report.write(store.load_all(self.out), self.out)
        self.assertIn("| accuracy cnn x | no memory |", (self.out / "table.md").read_text())

    def test_what_the_project_packed_can_be_read(self) -> None:
        out = BENCH / "results" / "train"
        packed = lzma.decompress((out / store.PACKED).read_bytes()).decode().splitlines()
        self.assertGreaterEqual(len(packed), 730)
        self.assertGreaterEqual(len(store.load_all(out)), len(packed))


class Tables(unittest.TestCase):
    """From records to tables."""

    def test_means_and_bytes(self) -> None:
        records = [made_up("ddp", 30.0, 1), made_up("ddp", 32.0, 2),
                   made_up("powersgd", 31.5, bytes_per_rank=60000)]
        problem = outcome.problems_of(records)[0]
        found = outcome.outcomes(records, problem)
        ddp = outcome.reference(found)
        assert ddp is not None
        self.assertEqual((ddp.mean, ddp.fewer), (31.0, 1.0))
        self.assertAlmostEqual(ddp.spread, 2 ** 0.5)
        self.assertEqual((found[1].fewer, found[1].beyond(ddp)), (10.0, 1.5))  # of seed 1

    def test_at_a_glance_problems_stand_side_by_side(self) -> None:
        def step(method: str, seconds: float) -> record.Record:
            return made_up(method, 0.0, purpose="step", ratio=4.0, rate_mbit=2.0,
                           step_median_s=seconds)

        def whole(lr: float, seed: int, wall_s: float) -> record.Record:
            return made_up("ours", 30.0 + seed, seed, purpose="whole", ratio=4.0, rate_mbit=2.0,
                           lr=lr, wall_s=wall_s)

        text = {"model": "gpt", "dataset": "shakespeare", "metric": "loss"}
        made = report.glance([
            made_up("ddp", 30.0, 1), made_up("ddp", 32.0, 2), made_up("ddp", 2.0, **text),
            made_up("powersgd", 31.5, settings="rank=4", bytes_per_rank=60000),
            made_up("powersgd", 2.25, settings="rank=4", bytes_per_rank=30000, **text),
            step("ddp", 0.2), step("powersgd", 0.1),
            whole(0.1, 1, 4.0), whole(0.1, 2, 6.0), whole(0.2, 3, 1.0)])
        self.assertIn("communication / computation 4\n", made)
        # 5 % of PowerSGD's steps are plain; of ours the rate with most seeds counts
        for row in ("| method | cnn on cifar100, accuracy |\n", "| ddp | 31.00 +- 1.41 |\n",
                    "| powersgd rank=4 | +1.5, 1.9 x |\n", "| ours | +0.5, 4.0 x |\n",
                    "| ddp | 31.00 +- 1.41 | 2.000 |\n",
                    "| powersgd rank=4 | +1.5 (10) | +0.25 (20) |\n"):
            self.assertIn(row, made)

    def test_time_is_where_the_curve_reaches_the_goal(self) -> None:
        curve = [(10.0, 20.0), (20.0, 30.0), (30.0, 31.0)]
        self.assertEqual(outcome.reached_at(curve, 25.0, "accuracy"), 15.0)
        self.assertIsNone(outcome.reached_at(curve, 32.0, "accuracy"))
        self.assertEqual(outcome.reached_at([(1.0, 3.0), (2.0, 2.0)], 2.5, "loss"), 1.5)

    def test_product_counts_plain_steps_at_the_beginning(self) -> None:
        pace = outcome.Pace(4, 10, {"ddp": 1.0, "postlocal": 0.2, "none": 0.1})
        self.assertAlmostEqual(pace.whole("postlocal", 100) or 0, 90 * 0.2 + 10 * 1.0)
        self.assertAlmostEqual(pace.waited("postlocal") or 0, 0.5)

    def test_a_step_without_an_accuracy_run_has_its_time(self) -> None:
        records = [made_up("ddp", 30.0, 1)]
        problem = outcome.problems_of(records)[0]
        pace = outcome.Pace(4, 10, {"ddp": 1.0, "none": 0.1, "ours-h1-float32": 0.8})
        text = report.time_table(outcome.outcomes(records, problem), problem, pace)
        self.assertRegex(text, r"\| ours-h1-float32 \(time only\) \| 800.0 \| 87.5 .*\| 1.25 \|")
        self.assertNotIn("none", text)

    def test_search_decides_the_learning_rate_of_a_family(self) -> None:
        records = [made_up("local-8", 30.0, 0, purpose="search", lr=0.05),
                   made_up("local-8", 33.0, 0, purpose="search", lr=0.1)]
        self.assertEqual(plan.best_of(records, "cnn", "local", "cifar100").lr, 0.1)
        runs = list(plan.accuracy(records, "cnn", "cifar100", (1,), ("local-32", "ddp")))
        self.assertEqual([one.lr for one in runs], [0.1, 0.05])

    def test_the_default_policy_is_searched_on_shaped_links(self) -> None:
        records = [made_up("ours-h4-int4", 33.0, 0, purpose="search", lr=0.025),
                   made_up("ours", 32.0, 0, purpose="search", lr=0.1)]
        runs = list(plan.shaped(records, "cnn", "cifar100"))
        searches = [one for one in runs if one.part == "search"]
        self.assertEqual({(one.method, one.ratio) for one in searches}, {("ours", 4.0)})
        # on the fastest links it stays exact, so there it takes DDP's rate
        self.assertEqual({(one.ratio, one.lr) for one in runs
                          if (one.part, one.method) == ("whole", "ours")},
                         {(0.25, 0.05), (1.0, 0.1), (4.0, 0.1), (16.0, 0.1)})

    def test_first_samples_of_tiny_imagenet_are_of_all_classes(self) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            self.skipTest(str(error))
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder, "tiny-imagenet-32")
            for index in range(4):
                images = root / "train" / f"n{index}" / "images"
                images.mkdir(parents=True)
                for number in range(10):
                    Image.new("RGB", (32, 32), (index, 0, 0)).save(
                        images / f"n{index}_{number}.JPEG")
            (root / "val" / "images").mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(root / "val" / "images" / "val_0.JPEG")
            (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn2\t0\t0\t1\t1\n")
            made = data.load("tinyimagenet", folder, folder)
            self.assertEqual(sorted(set(made.train.y[:12].tolist())), [0, 1, 2, 3])
            self.assertEqual(made.test.y.tolist(), [2])
            again = data.load("tinyimagenet", folder, folder)
            self.assertTrue(np.array_equal(made.train.y, again.train.y))

    def test_tiny_imagenet_takes_what_was_found_on_cifar(self) -> None:
        records = [made_up("ddp", 33.0, 0, purpose="search", lr=0.1)]
        self.assertEqual(plan.best_of(records, "cnn", "ddp", "tinyimagenet").lr, 0.1)
        self.assertEqual(list(plan.search(records, "cnn", "ddp", "tinyimagenet")), [])

    def test_search_goes_on_where_the_best_is_at_the_edge(self) -> None:
        def tried(*finals: tuple[float, float]) -> list[float]:
            records = [made_up("ddp", final, 0, purpose="search", lr=lr, key=str(lr))
                       for lr, final in finals]
            return [one.lr for one in plan.search(records, "cnn", "ddp", "cifar100")
                    if one.seed == plan.SEARCH_SEED]

        middle = ((0.025, 1.0), (0.05, 3.0), (0.1, 2.0))
        self.assertEqual(tried(*middle), [0.05, 0.1, 0.025])
        edge = ((0.025, 1.0), (0.05, 2.0), (0.1, 3.0))
        self.assertEqual(tried(*edge), [0.05, 0.1, 0.025, 0.2])
        self.assertEqual(tried(*edge, (0.2, 4.0)), [0.05, 0.1, 0.025, 0.2, 0.4])
        self.assertEqual(tried(*edge, (0.2, 2.5)), [0.05, 0.1, 0.025, 0.2])
        self.assertEqual(tried((0.025, 4.0), *middle[1:]), [0.05, 0.1, 0.025, 0.0125])

    def test_a_second_seed_takes_no_rate_from_the_grid_and_may_add_one(self) -> None:
        def tried(second: tuple[float, float]) -> set[float]:
            finals = {0: (1.0, 2.0, 3.0), plan.AGAIN_SEED: (None, *second)}
            records = [made_up("ddp", final, seed, purpose="search", lr=lr)
                       for seed, values in finals.items()
                       for lr, final in zip((0.025, 0.05, 0.1), values) if final is not None]
            return {one.lr for one in plan.search(records, "cnn", "ddp", "cifar100")
                    if one.seed == plan.SEARCH_SEED}

        self.assertIn(0.2, tried((9.0, 0.0)))  # the first seed's best is at the edge
        self.assertIn(0.2, tried((0.0, 9.0)))

    def test_a_rate_other_than_ddps_must_win_with_a_second_seed(self) -> None:
        def searched(method: str, lr: float, final: float, seed: int = 0) -> record.Record:
            return made_up(method, final, seed, purpose="search", lr=lr)

        grid = [searched(method, lr, final) for method, finals in (
                    ("ddp", (1.0, 3.0, 2.0)), ("local-8", (1.0, 2.0, 2.5, 2.4)))
                for lr, final in zip((0.025, 0.05, 0.1, 0.2), finals)]

        def again(*more: record.Record, family: str = "local") -> list[tuple[float, int]]:
            runs = plan.search([*grid, *more], "cnn", family, "cifar100")
            return [(one.lr, one.seed) for one in runs if one.seed]

        self.assertEqual(again(family="ddp"), [(0.05, plan.AGAIN_SEED), (0.1, plan.AGAIN_SEED)])
        below = [searched("ours-h1-int4", lr, final) for lr, final in (
            (0.025, 2.5), (0.05, 2.4), (0.1, 1.0))]
        self.assertEqual(again(*below, family="ours-h1"), [(0.025, 4), (0.05, 4)])
        self.assertEqual(again(), [(0.1, plan.AGAIN_SEED), (0.05, plan.AGAIN_SEED)])
        second = [searched("local-8", 0.1, 1.0, plan.AGAIN_SEED),
                  searched("local-8", 0.05, 2.0, plan.AGAIN_SEED)]
        self.assertEqual(again(second[0]), [(0.1, plan.AGAIN_SEED), (0.05, plan.AGAIN_SEED)])
        self.assertEqual(again(*second), again())  # both have records now
        self.assertEqual(
            plan.best_of([*grid, *second], "cnn", "local", "cifar100").lr, 0.05)
        # what a rate beyond the first grid has with the first seed, it must have with both
        beyond = searched("local-8", 0.4, 3.5)
        self.assertEqual(again(*second, beyond), [(0.4, plan.AGAIN_SEED), (0.05, plan.AGAIN_SEED)])
        high = [searched("local-8", 0.4, 3.5, plan.AGAIN_SEED), beyond]
        self.assertEqual(
            plan.best_of([*grid, *second, *high], "cnn", "local", "cifar100").lr, 0.4)

    def test_rate_gives_the_asked_ratio(self) -> None:
        pace = made_up("none", 0.0, purpose="pace", step_median_s=0.1, parameters=10 ** 6)
        one = plan.Planned("step", "cnn", "ddp", 0, 0.05, ratio=4.0, dataset="cifar100")
        rate = train_table.rate_of([pace], one)
        # 6 MB a step in 4 x 0.1 s
        self.assertAlmostEqual(rate or 0, 120.0)

    def test_bad_records_are_refused(self) -> None:
        good = made_up("ddp", 30.0)
        self.assertEqual(record.problems(good), [])
        for name, value in (("final", "x"), ("steps", True), ("eval_loss", [1.0]),
                            ("size", {"depth": 8})):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                with self.assertRaises(ValueError):
                    store.save({**good, name: value}, pathlib.Path(folder))
                self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyError):
            file = store.save(good, pathlib.Path(folder))
            self.assertEqual(json.loads(file.read_text()), good)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        torch.set_num_threads(1)
        as_rank(int(sys.argv[2]), *sys.argv[3:])
    else:
        unittest.main()
