# SPDX-License-Identifier: Apache-2.0
"""`msdu run`: no layer is taken for a step, and nothing is narrowed where it gains nothing.

Arguments as of test_attach.py. The trainers' mean over ranks takes the same way whether ranks meet in
every step or not, so the plain run's end is also that of local steps, to rounding.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from test_attach import Case, job, main, options, program, pythons_with_mpi4py

RANKS = 2
LOCAL = {
    "MSDU_OPTIMIZER": "sgd",
    "MSDU_MOMENTUM": "0.9",
    "MSDU_TOTAL_STEPS": "100",
    "MSDU_INTERVAL": "fixed",
    "MSDU_INTERVAL_STEPS": "4",
}
ALWAYS = {"MSDU_ATTACH": "always", "MSDU_ATTACH_GUARD": "10"}


def end(done: subprocess.CompletedProcess[str]) -> tuple[float, float, float]:
    """How far ranks are apart, how far their mean is from the best, its fingerprint."""
    found = re.search(r"apart (\S+) away (\S+) print (\S+)", done.stdout)
    assert done.returncode == 0 and found is not None, done.stdout + done.stderr
    return float(found.group(1)), float(found.group(2)), float(found.group(3))


class Layered(Case):
    """What every case compares."""

    def trainer(self) -> list[str]:
        """The command of the trainer."""
        return [program("attach_layers")]

    def plain(self, *words: str) -> tuple[float, float, float]:
        """As its author runs it."""
        return end(job(*self.trainer(), *words, ranks=RANKS))

    def attached(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Under `msdu run`."""
        return job(options.msdu, "run", "--", *self.trainer(), *words, ranks=RANKS, **settings)

    def assert_local(self, *words: str, count: int, **settings: str) -> None:
        """Local steps, from the model's own number of tensors, that end where the plain run ends."""
        reference = self.plain(*words)
        given = {name: value for name, value in {**LOCAL, **settings}.items() if value}
        done = self.attached(*words, **given)
        apart, away, fingerprint = end(done)
        self.assertLess(apart, 1e-11, done.stderr)
        self.assertAlmostEqual(away, reference[1], delta=1e-9)
        self.assertAlmostEqual(fingerprint, reference[2], delta=1e-7)
        self.assertIn(f"{count} reductions a step", done.stderr)
        self.assertEqual(done.stderr.count("recognized"), 1, done.stderr)
        self.assertRegex(done.stderr, r"the whole job: 100 steps, [4-8]\d of them taken")
        self.assertRegex(done.stderr, rf"a step has {count} gradients of \S+ .B, \S+ % of all bytes")
        self.assertNotIn("perhaps not the whole model", done.stderr)

    def assert_left_alone(self, done: subprocess.CompletedProcess[str], *words: str) -> None:
        """The plain run's end, to the last digit."""
        self.assertEqual(end(done), self.plain(*words))
        self.assertIn("0 reductions taken", done.stderr)

    def assert_ends_with_an_error(self, text: str, *words: str, **settings: str) -> None:
        """Ranks are apart, and cannot be joined."""
        done = self.attached(*words, **{**LOCAL, **settings})
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(text, done.stderr)
        self.assertNotIn("joined again", done.stderr)


class Depth(Layered):
    """Models of any depth, in any order."""

    def test_local_steps_end_where_the_plain_run_does(self) -> None:
        for layers in (2, 12, 48):
            for order in ((), ("reverse",)):
                self.assert_local(f"layers={layers}", *order, count=4 * layers + 2)

    def test_so_does_the_default_policy(self) -> None:
        chosen = {"MSDU_INTERVAL": "", "MSDU_INTERVAL_STEPS": "", "MSDU_ATTACH": "always"}
        self.assert_local("layers=12", count=50, **chosen)

    def test_gradients_in_four_bits_end_near_it_and_equal(self) -> None:
        for layers in (1, 12, 48):
            for order in ((), ("reverse",)):
                words = (f"layers={layers}", *order, "single")
                done = self.attached(*words, **ALWAYS)
                apart, away, _ = end(done)
                self.assertEqual(apart, 0)
                self.assertLess(away, 0.1)
                self.assertEqual(done.stderr.count("recognized"), 1, done.stderr)
                self.assertNotIn("changed", done.stderr)

    def test_whatever_the_calls(self) -> None:
        for word in ("nonblocking", "eval=3"):
            self.assert_local("layers=12", word, count=50)


class Blocks(Layered):
    """A model of 161 tensors in equal blocks, some of them small."""

    def test_its_step_is_found(self) -> None:
        self.assert_local("residual", count=self.large())
        done = self.attached("residual", "single", **ALWAYS)
        self.assertEqual(end(done)[0], 0)
        self.assertEqual(done.stderr.count("recognized"), 1, done.stderr)

    def large(self) -> int:
        """Tensors of at least MSDU_ATTACH_MIN_BYTES in float64, of the 161."""
        done = self.attached("residual", "steps=20", **ALWAYS)
        found = re.search(r"(\d+) reductions a step", done.stderr)
        assert found is not None, done.stderr
        return int(found.group(1))

    def test_the_models_own_number_counts_small_ones(self) -> None:
        done = self.attached("residual", "single", "steps=40", MSDU_ATTACH_TENSORS="161", **ALWAYS)
        self.assertIn("gradients recognized: 130 reductions", done.stderr)
        done = self.attached("residual", "single", "steps=40", MSDU_ATTACH_TENSORS="160", **ALWAYS)
        self.assert_left_alone(done, "residual", "single", "steps=40")
        self.assertEqual(done.stderr.count("MSDU_ATTACH_TENSORS is 160, but"), 1, done.stderr)


class Doubt(Layered):
    """What cannot be known is left alone, and told."""

    def test_layers_through_one_buffer(self) -> None:
        for settings in (LOCAL, ALWAYS):
            done = self.attached("layers=12", "staged", **settings)
            self.assert_left_alone(done, "layers=12", "staged")
            self.assertIn("MSDU_ATTACH_TENSORS says how many", done.stderr)
        self.assert_local("layers=1", "staged", count=6, MSDU_ATTACH_TENSORS="6")

    def test_a_number_that_is_not_met_is_told_soon_and_not_asked_for_again(self) -> None:
        words = ("layers=12", "staged", "steps=6")
        done = self.attached(*words, MSDU_ATTACH_TENSORS="51", **ALWAYS)
        self.assert_left_alone(done, *words)
        self.assertEqual(done.stderr.count("MSDU_ATTACH_TENSORS is 51, but no sequence"), 1)
        self.assertNotIn("says how many gradients", done.stderr)
        self.assertRegex(done.stderr, r"300 while learning, or in no pattern: \S+ MB\n")
        self.assertIn("the whole job: 0 steps understood, 0 of them taken", done.stderr)

    def test_a_layer_that_is_frozen_among_equal_ones(self) -> None:
        done = self.attached("layers=12", "frozen=5", "single", **ALWAYS)
        self.assertEqual(end(done)[0], 0)
        self.assertEqual(done.stderr.count("the pattern of reductions changed"), 1, done.stderr)
        done = self.attached("layers=12", "frozen=5", **LOCAL)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("gradients of one size are not in the order that they were in", done.stderr)

    def test_layers_that_change_places(self) -> None:
        for step in ("40", "61", "99"):  # the last is seen at the end of the job
            words = ("layers=12", f"swap={step}")
            self.assert_ends_with_an_error("came in another order", *words)
            self.assert_ends_with_an_error(
                "came in another order", *words, MSDU_ATTACH_TENSORS="50"
            )
        for settings in ({}, {"MSDU_ATTACH_TENSORS": "50"}):
            done = self.attached("layers=12", "swap=61", "single", **ALWAYS, **settings)
            self.assertEqual(end(done)[0], 0)
            self.assertEqual(done.stderr.count("some come from several places in memory"), 1)

    def test_one_buffer_and_a_barrier_behind_each_gradient(self) -> None:
        words = ("layers=3", "bare", "staged", "barrier")
        for settings in (LOCAL, ALWAYS):
            self.assert_left_alone(self.attached(*words, **settings), *words)

    def test_what_comes_more_often_than_there_are_steps_is_none(self) -> None:
        for some in (("layers=12", "micro=2"), ("layers=12", "bare", "shared")):
            words = (*some, "steps=200")
            text = "209 steps came, MSDU_TOTAL_STEPS is 200"
            self.assert_ends_with_an_error(text, *words, MSDU_TOTAL_STEPS="200")
            unsaid = {key: text for key, text in LOCAL.items() if key != "MSDU_TOTAL_STEPS"}
            done = self.attached(*words, **unsaid)
            self.assert_left_alone(done, *words)
            self.assertIn("it may be a part of one: no local steps", done.stderr)

    def assert_ends_early(
        self, done: subprocess.CompletedProcess[str], steps: int, total: int
    ) -> None:
        """A line and a status; all that the trainer does is done."""
        self.assertEqual(done.returncode, 16, done.stdout + done.stderr)
        line = f"rank 0: error: the training ended after {steps} steps, MSDU_TOTAL_STEPS is {total}"
        self.assertEqual(done.stderr.count(line), 1, done.stderr)
        for rank in range(RANKS):
            self.assertIn(f"rank {rank} saved", done.stdout)

    def test_an_early_end_is_an_error(self) -> None:
        for words, total, steps in (
            (("layers=12",), "103", 100),
            (("layers=12", "micro=4", "steps=50"), "100000", 200),
            (("layers=12", "steps=97"), "103", 97),  # ranks have just synchronized
        ):
            done = self.attached(
                *words, "saves", **{**LOCAL, "MSDU_TOTAL_STEPS": total, "MSDU_LOG": "error"}
            )
            self.assert_ends_early(done, steps, int(total))
            self.assertEqual(done.stdout.count("child 0"), RANKS)

    def test_a_trainers_own_bad_end_stays_what_it_is(self) -> None:
        words = ("layers=12", "steps=50")
        for own in (3, 0):
            done = self.attached(*words, f"status={own}", **{**LOCAL, "MSDU_TOTAL_STEPS": "90"})
            self.assertEqual(done.returncode, own if own else 16)
            done = self.attached(*words, f"status={own}", **{**LOCAL, "MSDU_TOTAL_STEPS": "50"})
            self.assertEqual(done.returncode, own, done.stderr)

    def test_what_comes_behind_the_last_step_is_passed_through(self) -> None:
        for word in ("steps=103", "average"):
            words = ("layers=12", word)
            done = self.attached(*words, **LOCAL, MSDU_ATTACH_GUARD="3")
            apart, away, _ = end(done)
            self.assertLess(apart, 1e-11, word)
            self.assertAlmostEqual(away, self.plain(*words)[1], delta=1e-9)
            self.assertIn("all 100 steps of MSDU_TOTAL_STEPS were made", done.stderr)
            self.assertNotIn("differ", done.stderr)

    def test_local_steps_wait_for_twenty_whole_steps(self) -> None:
        words = ("layers=48", "steps=19")
        done = self.attached(*words, **{**LOCAL, "MSDU_TOTAL_STEPS": "19"})
        self.assert_left_alone(done, *words)


class Broken(Layered):
    """A pattern that changes under local steps, of layers that only memory tells apart."""

    def test_the_last_of_equal_layers_is_frozen(self) -> None:
        done = self.attached("layers=12", "frozen=11", **LOCAL)
        self.assertEqual(done.returncode, 16, done.stdout + done.stderr)
        told = "error: the gradient of 768 elements, 46 of 50 of a step, was not reduced any more"
        self.assertEqual(done.stderr.count(told), 1, done.stderr)
        self.assertNotIn("joined again", done.stderr)
        found = re.search(r"apart (\S+) away", done.stdout)
        assert found is not None
        self.assertLess(float(found.group(1)), 1)  # its own way, and no other layer's
        done = self.attached("layers=12", "frozen=11", **LOCAL, MSDU_ATTACH_EQUAL_STEPS="25")
        self.assertLess(end(done)[0], 1e-11, done.stderr)
        self.assertAlmostEqual(end(done)[2], self.plain("layers=12", "frozen=11")[2], delta=1e-7)
        self.assertNotIn("differ", done.stderr)

    def test_no_pattern_is_found_again_and_ranks_are_joined(self) -> None:
        for tensors in ("0", "50"):
            words = ("layers=12", "shuffle=61")
            done = self.attached(*words, **LOCAL, MSDU_ATTACH_TENSORS=tensors)
            apart, away, fingerprint = end(done)
            reference = self.plain(*words)
            self.assertLess(apart, 1e-11, done.stderr)
            self.assertAlmostEqual(away, reference[1], delta=1e-9)
            self.assertAlmostEqual(fingerprint, reference[2], delta=1e-7)
            self.assertEqual(done.stderr.count("recognized"), 1, done.stderr)
            self.assertEqual(done.stderr.count("ranks are joined again"), 1, done.stderr)
            self.assertIn("understood, and later ones not", done.stderr)

    def test_they_are_not_where_memory_moves_with_the_order(self) -> None:
        done = self.attached("layers=12", "shuffle=61", "stage=61", **LOCAL)
        self.assertEqual(done.returncode, 16, done.stdout + done.stderr)
        self.assertIn("or from other memory: its parameters differ", done.stderr)
        self.assertNotIn("joined again", done.stderr)

    def test_parameters_are_joined_by_the_first_reduction(self) -> None:
        for words in (("shuffle=99",), ("steps=101",)):  # momentum is not, but nobody uses it
            done = self.attached("layers=12", *words, **LOCAL)
            self.assertLess(end(done)[0], 1e-11, done.stderr)


class Unseen(Layered):
    """What calls alone do not show, under local steps."""

    def test_gradients_of_one_size_in_one_buffer_may_change_places(self) -> None:
        for words in (("layers=12", "staged"), ("layers=12", "staged", "swap=61")):
            done = self.attached(*words, **LOCAL, MSDU_ATTACH_TENSORS="50")
            self.assert_left_alone(done, *words)
            told = "some are of one size, and their memory does not tell them apart: no local"
            self.assertEqual(done.stderr.count(told), 1, done.stderr)
        exact = {**LOCAL, "MSDU_DOMAIN": "gradient", "MSDU_ATTACH_TENSORS": "50"}
        done = self.attached("layers=12", "staged", "swap=61", **exact)
        self.assertEqual(end(done)[0], 0)
        self.assertLess(end(done)[1], 0.05)
        self.assertIn("4800 reductions taken", done.stderr)

    def test_memory_that_told_them_apart_and_then_does_not(self) -> None:
        for word in ("stage=55", "mean=61"):  # one buffer later on; an average between two steps
            for tensors in ("0", "50"):
                words = ("layers=12", word, "swap=70")
                text = "from other memory: ranks have moved apart"
                self.assert_ends_with_an_error(text, *words, MSDU_ATTACH_TENSORS=tensors)

    def test_an_average_that_looks_like_a_step(self) -> None:
        settings = {**LOCAL, "MSDU_ATTACH_TENSORS": "6"}
        done = self.attached("layers=1", "staged", "mean=61", **settings)
        self.assertEqual(done.returncode, 16, done.stdout + done.stderr)
        told = "what looks like a step came 101 times, MSDU_TOTAL_STEPS is 100"
        self.assertEqual(done.stderr.count(told), 1, done.stderr)

    def test_parameters_that_are_broadcast_between_local_steps(self) -> None:
        settings = {**LOCAL, "MSDU_INTERVAL_STEPS": "8", "MSDU_LOG": "error"}
        done = self.attached("layers=2", "bcast=63", **settings)
        self.assertEqual(done.returncode, 16, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("between local steps values came to all ranks"), 1)
        for word in ("bcast=0", "bcast=63"):  # where they are equal it does no harm
            done = self.attached("layers=2", word, **settings, MSDU_ATTACH_EQUAL_STEPS="21")
            self.assertLess(end(done)[0], 1e-11, done.stderr)

    def test_layers_in_shared_buffers_for_longer_than_is_waited(self) -> None:
        words = ("layers=140", "tail=10", "shared", "steps=140")
        text = "149 steps came, MSDU_TOTAL_STEPS is 140"
        done = self.attached(*words, **{**LOCAL, "MSDU_TOTAL_STEPS": "140"})
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(text, done.stderr)


class Unasked(Layered):
    """Without settings."""

    WORDS: ClassVar = ("layers=12", "single")

    def test_plain_steps_come_first(self) -> None:
        words = (*self.WORDS, "steps=30")
        done = self.attached(*words)
        self.assert_left_alone(done, *words)
        self.assertIn("1300 gradients, while they were watched", done.stderr)

    def test_what_was_measured_is_told(self) -> None:
        done = self.attached(*self.WORDS)
        self.assertEqual(end(done)[0], 0)
        self.assertRegex(done.stderr, r"plain steps take \S+ ms, of it \S+ in reductions: ")
        if "fewer bytes are tried" in done.stderr:
            self.assertRegex(done.stderr, r"with fewer bytes, \S+ plain: (kept|passed through)")
        else:
            self.assert_left_alone(done, *self.WORDS)


class Mpi4py(Layered):
    """The same in Python."""

    python: ClassVar[list[str]] = []

    def trainer(self) -> list[str]:
        return [*self.python, "-B", str(Path(__file__).with_name("attach_layers.py"))]

    def test_an_early_end_is_an_error_and_takes_nothing(self) -> None:
        if not pythons_with_mpi4py():
            self.skipTest(f"no Python with NumPy and mpi4py over {options.family}")
        for python in pythons_with_mpi4py():
            type(self).python = python
            done = self.attached("12", "60", "saves", **LOCAL)
            self.assertEqual(done.returncode, 16, done.stdout + done.stderr)
            self.assertIn("ended after 60 steps, MSDU_TOTAL_STEPS is 100", done.stderr)
            for rank in range(RANKS):
                self.assertIn(f"rank {rank} saved", done.stdout)

    def test_local_steps_end_where_the_plain_run_does(self) -> None:
        if not pythons_with_mpi4py():
            self.skipTest(f"no Python with NumPy and mpi4py over {options.family}")
        for python in pythons_with_mpi4py():
            type(self).python = python
            for words in (("12", "100"), ("12", "100", "reverse"), ("48", "100")):
                self.assert_local(*words, count=4 * int(words[0]) + 2)


if __name__ == "__main__":
    sys.exit(main())
