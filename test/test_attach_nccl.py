# SPDX-License-Identifier: Apache-2.0
"""`msdu run` before NCCL: trainers that nobody changed, over a STAND-IN for NCCL and CUDA.

test_attach_nccl.py --msdu FILE --programs FOLDER: the trainers lie in the folder, the stand-in and
its modules in the folder standin beside them. What is tested is the library's side: what it takes,
in which order and on which stream; never NCCL itself.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PATIENCE_S = 100
RANKS = "3"
SGD = {
    "MSDU_OPTIMIZER": "sgd",
    "MSDU_MOMENTUM": "0.9",
    "MSDU_INTERVAL": "fixed",
    "MSDU_WIRE": "float32",
    "MSDU_WARMUP_STEPS": "0",
    "MSDU_ATTACH_LEARN": "18",
}
LEARNED = 5  # steps of the trainer that are NCCL's own: 18 calls, 6 a step, and one to begin
EXACT_FIRST = 2  # fixed: a decision takes effect one round late, so two steps at h = 1

options = argparse.Namespace()


class Job:
    """What ranks of a job left behind: output of rank 0, errors and statuses of all."""

    def __init__(self, command: list[str], settings: dict[str, str], ranks: str) -> None:
        """Run a command as ranks, without settings of the caller, and wait."""
        clean = {name: value for name, value in os.environ.items() if "MSDU" not in name}
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                **clean,
                "MSDU_MODULE_PATH": str(options.programs / "standin"),
                "WORLD_SIZE": ranks,
                "TRAINER_ID": f"{folder}/id",
                "TMPDIR": folder,
                **settings,
            }
            started = [
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    env={**environment, "RANK": str(rank)},
                )
                for rank in range(int(ranks))
            ]
            try:
                ends = [one.communicate(timeout=PATIENCE_S) for one in started]
            finally:
                for one in started:
                    one.kill()
            self.left = [name for name in os.listdir(folder) if not name.startswith("id")]
        self.codes = [one.returncode for one in started]
        self.stdout = ends[0][0]
        self.stderr = "".join(end[1] for end in ends)

    def log(self, prefix: str = "") -> list[str]:
        """Lines of the training log."""
        wanted = (f"{prefix}step ", f"{prefix}end ")
        return [line for line in self.stdout.splitlines() if line.startswith(wanted)]

    def losses(self) -> list[float]:
        """Loss of each step."""
        return [float(line.split()[3]) for line in self.log() if line.startswith("step")]

    def apart(self) -> float:
        """How far ranks are apart at the end."""
        return float(self.log()[-1].split()[-1])


def plain(*words: str, ranks: str = RANKS) -> Job:
    """The trainer as its author runs it."""
    return Job([str(options.programs / "attach_nccl_trainer"), *words], {}, ranks)


def attached(*words: str, ranks: str = RANKS, **settings: str) -> Job:
    """The trainer under `msdu run`."""
    trainer = str(options.programs / "attach_nccl_trainer")
    return Job([options.msdu, "run", "--", trainer, *words], settings, ranks)


class Case(unittest.TestCase):
    """What all tests share."""

    def good(self, done: Job) -> Job:
        """A job that ended well, trained, and left nothing behind."""
        self.assertEqual(set(done.codes), {0}, done.stdout[-1000:] + done.stderr[-2000:])
        self.assertGreater(len(done.log()), 10, done.stdout + done.stderr)
        self.assertEqual(done.left, [])
        return done

    def assert_near(self, one: list[float], two: list[float], tolerance: float) -> None:
        """Element by element, relative to the larger."""
        self.assertEqual(len(one), len(two))
        for at, x in enumerate(one):
            y = two[at]
            self.assertLessEqual(abs(x - y), tolerance * max(abs(x), abs(y)), f"step {at}")

    def ratio(self, done: Job) -> float:
        """Times fewer bytes, as the summary says."""
        found = re.search(r"([0-9.]+) times fewer", done.stderr)
        assert found is not None, done.stderr
        return float(found.group(1))


class Exact(Case):
    """Settings under which nothing may change."""

    def test_float32_every_step_equals_the_run_without_the_library_bit_for_bit(self) -> None:
        for words in ([], ["group", "streams"]):
            done = self.good(attached(*words, MSDU_WIRE="float32"))
            self.assertEqual(done.log(), self.good(plain(*words)).log())
            self.assertIn("exact as they are", done.stderr)

    def test_off_denied_and_float64_pass_everything_through(self) -> None:
        reference = self.good(plain()).log()
        self.assertEqual(self.good(attached(MSDU_ATTACH="off")).log(), reference)
        done = self.good(attached(MSDU_ATTACH_DENY="513-3001"))
        self.assertEqual(done.log(), reference)
        self.assertIn("180 denied by a list", done.stderr)
        double = self.good(attached("double"))
        self.assertEqual(double.log(), self.good(plain("double")).log())
        self.assertIn("float64 with local steps", double.stderr)

    def test_local_steps_for_adam_are_refused_with_the_reason(self) -> None:
        done = self.good(attached("adam", MSDU_DOMAIN="accumulated", MSDU_OPTIMIZER="adam"))
        self.assertEqual(done.log(), self.good(plain("adam")).log())
        self.assertIn("needs optimizer sgd", done.stderr)


class Narrow(Case):
    """The default: four bits, for an optimizer that is not known."""

    def test_training_is_as_good_and_ranks_stay_equal(self) -> None:
        for words in ([], ["equal"], ["mean", "adam"]):
            done = self.good(attached(*words))
            self.assert_near(done.losses(), self.good(plain(*words)).losses(), 0.02)
            self.assertEqual(done.apart(), 0)
            self.assertIn("3 reductions a step", done.stderr)
            self.assertRegex(done.stderr, "1[56][0-9] reductions taken as gradients")
            self.assertNotEqual(done.log(), self.good(plain(*words)).log())

    def test_large_layers_send_a_seventh(self) -> None:
        done = self.good(attached("large", "steps=40", ranks="2"))
        self.assertGreater(self.ratio(done), 7.0)
        reference = self.good(plain("large", "steps=40", ranks="2"))
        self.assert_near(done.losses(), reference.losses(), 0.1)


class Ways(Case):
    """Every way to reduce gives the same bits."""

    def test_streams_groups_and_memory(self) -> None:
        reference = self.good(attached()).log()
        ways = (["group"], ["streams"], ["streams", "group"], ["moving", "apart"])
        for words in (*ways, ["poll"], ["poll", "group"], ["forks"], ["open"], ["abort"]):
            done = self.good(attached(*words))
            self.assertEqual(done.log(), reference, words)
            self.assertIn("reductions taken as gradients", done.stderr)

    def test_no_call_waits_for_the_device(self) -> None:
        self.assertEqual(self.good(attached("held")).log(), self.good(attached()).log())

    def test_captured_reductions_are_not_looked_at(self) -> None:
        done = self.good(attached("capture"))
        self.assertEqual(done.log(), self.good(attached()).log())
        self.assertIn("5 captured in a CUDA graph", done.stderr)

    def test_two_communicators_in_two_threads(self) -> None:
        done = self.good(attached("pair"))
        self.assertEqual(done.log(), self.good(attached()).log())
        self.assertEqual(len(done.log("second ")), 61)
        self.assertEqual(done.stderr.count("gradients recognized: 3"), 2)

    def test_division_before_or_after_the_sum_or_by_nccl(self) -> None:
        reference = self.good(plain()).losses()
        for words in (["late"], ["mean"]):
            self.assert_near(self.good(attached(*words)).losses(), reference, 0.02)


class Local(Case):
    """Local steps, for SGD as the settings describe it."""

    def test_equals_parameter_averaging_written_by_hand(self) -> None:
        hand = ("local=4", f"learned={LEARNED}", f"warmup={EXACT_FIRST}")
        for words in (["double"], ["double", "group", "streams"], ["double", "mean"]):
            done = self.good(attached(*words, "steps=59", MSDU_INTERVAL_STEPS="4", **SGD))
            by_hand = self.good(plain(*words, "steps=59", *hand))
            self.assert_near(done.losses(), by_hand.losses(), 1e-11)
            self.assertLess(done.apart(), 1e-9)
            synchronous = self.good(plain(*words, "steps=59")).losses()
            self.assertGreater(abs(synchronous[-1] - done.losses()[-1]), 1e-6)

    def test_float32_too_to_its_rounding(self) -> None:
        done = self.good(attached("steps=59", MSDU_INTERVAL_STEPS="4", **SGD))
        hand = ("local=4", f"learned={LEARNED}", f"warmup={EXACT_FIRST}")
        self.assert_near(done.losses(), self.good(plain("steps=59", *hand)).losses(), 1e-5)

    def test_equal_data_give_the_same_log_with_any_interval(self) -> None:
        reference = self.good(plain("double", "same", "late", ranks="2")).log()
        for steps in ("2", "7"):
            settings = {**SGD, "MSDU_INTERVAL_STEPS": steps}
            done = self.good(attached("double", "same", "late", ranks="2", **settings))
            self.assertEqual(done.log(), reference)

    def test_ranks_are_equal_where_it_is_asked_for(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "16", **SGD}
        self.assertGreater(self.good(attached("double", **settings)).apart(), 1e-6)
        for name, value in (("MSDU_TOTAL_STEPS", "60"), ("MSDU_ATTACH_EQUAL_STEPS", "15")):
            done = self.good(attached("double", **{**settings, name: value}))
            self.assertLess(done.apart(), 1e-9, name)
        self.assertLess(self.good(attached("double", "meet", **settings)).apart(), 1e-9)


class Changes(Case):
    """Other gradients than before."""

    def test_changed_pattern_is_told_and_learned_anew(self) -> None:
        for words in (["change"], ["change", "group"]):
            done = self.good(attached(*words))
            self.assertIn("the pattern of reductions changed after", done.stderr)
            self.assertIn("4 reductions a step", done.stderr)
            self.assert_near(done.losses(), self.good(plain(*words)).losses(), 0.02)
            self.assertEqual(done.apart(), 0)

    def test_new_layer_is_passed_through_and_local_steps_go_on(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "60", **SGD}
        done = self.good(attached("change", "double", **settings))
        self.assertIn("one of 2000 elements, and what is like it, is passed through", done.stderr)
        self.assert_near(done.losses(), self.good(plain("change", "double")).losses(), 0.05)

    def test_layer_that_stays_away_ends_local_steps_with_one_line(self) -> None:
        done = attached("freeze", MSDU_INTERVAL_STEPS="4", **SGD)
        self.assertNotIn(0, done.codes)
        self.assertIn("the pattern of reductions changed under local steps", done.stderr)


class Hostile(Case):
    """Each ends in correct training, or in a status and a line."""

    def test_rank_that_reduces_something_else_is_told(self) -> None:
        done = attached("differ", MSDU_DEADLINE_MS="3000")
        self.assertNotIn(0, done.codes)
        told = "rank 2: a reduction of 699 elements came|rank 2 did not reach operation"
        self.assertRegex(done.stderr, told)

    def test_killed_rank_ends_the_others_with_a_line(self) -> None:
        done = attached("dies", MSDU_DEADLINE_MS="20000")
        self.assertEqual(done.codes[2], -9)
        self.assertNotIn(0, done.codes)
        self.assertRegex(done.stderr, "msdu: rank [01]: .*rank 2")

    def test_shells_and_what_knows_no_nccl_see_nothing(self) -> None:
        done = Job(
            [options.msdu, "run", "--", "sh", "-c", "echo $(echo inner | cat); exit 7"], {}, "1"
        )
        self.assertEqual((done.codes, done.stdout, done.stderr), ([7], "inner\n", ""))


class Loading(Case):
    """How NCCL came into the process."""

    def test_library_loaded_late_and_for_itself_alone_is_reached(self) -> None:
        loader = str(options.programs / "attach_nccl_loader")
        late = str(options.programs / "attach_nccl_late.so")
        done = self.good(Job([options.msdu, "run", "--", loader, late], {}, RANKS))
        self.assertEqual(done.log(), self.good(attached()).log())

    def test_two_copies_in_a_process_keep_their_own(self) -> None:
        loader = str(options.programs / "attach_nccl_loader")
        both = ",".join(str(options.programs / f"attach_nccl_late{x}.so") for x in ("", "_copy"))
        done = self.good(Job([options.msdu, "run", "--", loader, both, "open"], {}, RANKS))
        self.assertEqual(done.log(), 2 * self.good(attached()).log())
        self.assertEqual(done.stderr.count("reductions taken as gradients"), 2)

    def test_without_the_module_everything_is_passed_through(self) -> None:
        done = self.good(attached(MSDU_MODULE_PATH="/nonesuch"))
        self.assertEqual(done.log(), self.good(plain()).log())
        self.assertIn("no module for NCCL", done.stderr)


def main() -> int:
    """Read what is ours from the command line; the rest is unittest's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--msdu", required=True)
    parser.add_argument("--programs", required=True, type=Path)
    _, rest = parser.parse_known_args(namespace=options)
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
