# SPDX-License-Identifier: Apache-2.0
"""`msdu run`: trainers that nobody changed, under a real mpirun.

test_attach.py --family NAME --mpirun FILE --msdu FILE --programs FOLDER: the family's trainers lie
in the folder. Status 77 where mpirun is missing.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

VENV = Path(__file__).resolve().parents[2] / "build" / "venv"
PATIENCE_S = 100
RANKS = 4
SGD = {
    "MSDU_OPTIMIZER": "sgd",
    "MSDU_MOMENTUM": "0.9",
    "MSDU_INTERVAL": "fixed",
    "MSDU_WIRE": "float32",
    "MSDU_WARMUP_STEPS": "0",
    "MSDU_ATTACH_TENSORS": "3",
}
WHOLE = {**SGD, "MSDU_TOTAL_STEPS": "60"}
LEARNED = 20  # steps of the trainer that have to hold before local steps, if their tensors are given
EXACT_FIRST = 2  # fixed: a decision takes effect one round late, so two steps at h = 1

options = argparse.Namespace()


def job(*command: str, ranks: int = RANKS, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command as ranks of a job, without settings of the caller."""
    environment = {name: value for name, value in os.environ.items() if "MSDU" not in name}
    environment.update(settings)
    return subprocess.run(
        [options.mpirun, "-n", str(ranks), *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def program(name: str) -> str:
    """A test program of this family."""
    return str(options.programs / f"{name}_{options.family}")


@functools.lru_cache(maxsize=None)
def plain(*words: str, name: str = "attach_trainer") -> subprocess.CompletedProcess[str]:
    """The trainer as its author runs it; always the same, so run once for all tests."""
    return job(program(name), *words)


def attached(
    *words: str, name: str = "attach_trainer", **settings: str
) -> subprocess.CompletedProcess[str]:
    """The trainer under `msdu run`, attached whether it gains anything on this machine or not."""
    settings.setdefault("MSDU_ATTACH", "always")
    settings.setdefault("MSDU_ATTACH_GUARD", "5")
    return job(options.msdu, "run", "--", program(name), *words, **settings)


def log(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines of a training log."""
    return [line for line in done.stdout.splitlines() if line.startswith(("step ", "end "))]


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    """Loss of each step."""
    return [float(line.split()[3]) for line in log(done) if line.startswith("step")]


def apart(done: subprocess.CompletedProcess[str]) -> float:
    """How far ranks are apart at the end."""
    return float(log(done)[-1].split()[-1])


class Case(unittest.TestCase):
    """What all tests share."""

    def good(
        self, done: subprocess.CompletedProcess[str], code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """A job that ended well, or as it should, and trained."""
        self.assertEqual(done.returncode, code, done.stdout[-1000:] + done.stderr[-2000:])
        self.assertGreater(len(log(done)), 10, done.stdout + done.stderr)
        return done

    def assert_near(self, one: list[float], two: list[float], tolerance: float) -> None:
        """Element by element, relative to the larger."""
        self.assertEqual(len(one), len(two))
        for at, x in enumerate(one):
            y = two[at]
            self.assertLessEqual(abs(x - y), tolerance * max(abs(x), abs(y)), f"step {at}")

    def ratio(self, done: subprocess.CompletedProcess[str]) -> float:
        """Times fewer bytes, as the summary says."""
        found = re.search(r"([0-9.]+) times fewer", done.stderr)
        assert found is not None, done.stderr
        return float(found.group(1))


class Exact(Case):
    """Settings under which nothing may change."""

    def test_float32_every_step_equals_the_run_without_the_library_bit_for_bit(self) -> None:
        for words in ([], ["overlap", "double"]):
            done = self.good(attached(*words, MSDU_WIRE="float32"))
            self.assertEqual(log(done), log(self.good(plain(*words))))
            self.assertIn("exact as they are", done.stderr)

    def test_off_and_denied_pass_everything_through(self) -> None:
        reference = log(self.good(plain()))
        self.assertEqual(log(self.good(attached(MSDU_ATTACH="off"))), reference)
        done = self.good(attached(MSDU_ATTACH_DENY="513-3001"))
        self.assertEqual(log(done), reference)
        self.assertIn("180 denied by a list", done.stderr)

    def test_local_steps_without_one_of_the_gradients_are_refused(self) -> None:
        settings = {"MSDU_OPTIMIZER": "sgd", "MSDU_TOTAL_STEPS": "60"}
        done = self.good(attached(MSDU_ATTACH_DENY="at=1", **settings))
        self.assertEqual(log(done), log(self.good(plain())))
        self.assertIn("a list denies some by at=", done.stderr)


class Narrow(Case):
    """The default: four bits, for an optimizer that is not known."""

    def test_training_is_as_good_and_ranks_stay_equal(self) -> None:
        for words in ([], ["double"], ["equal"]):
            done = self.good(attached(*words))
            self.assert_near(losses(done), losses(self.good(plain(*words))), 0.02)
            self.assertEqual(apart(done), 0)
            self.assertIn("3 reductions a step", done.stderr)
            self.assertIn("162 reductions taken as gradients", done.stderr)
            self.assertGreater(self.ratio(done), 5)

    def test_lists_by_place_type_and_ranks(self) -> None:
        done = self.good(attached(MSDU_ATTACH_DENY="at=1"))
        self.assertIn("2 reductions a step", done.stderr)
        self.assertIn("denied by a list", done.stderr)
        self.assert_near(losses(done), losses(self.good(plain())), 0.02)
        self.assertEqual(apart(done), 0)
        reference = log(self.good(plain()))
        for deny in ("float32", f"ranks={RANKS}", "float64,at=0-"):
            self.assertEqual(log(self.good(attached(MSDU_ATTACH_DENY=deny))), reference)

    def test_lists_tell_communicators_of_one_size_apart(self) -> None:
        reference = self.good(plain("grid"))
        for deny, left, taken in (("comm=row", "row", "column"), ("comm=col*:4-", "column", "row")):
            done = self.good(attached("grid", MSDU_ATTACH_DENY=deny))
            self.assertIn(f"(comm={taken}); domain gradient", done.stderr)
            self.assertNotIn(f"comm={left}); domain", done.stderr)
            self.assertIn(f"comm={left}): 0 reductions taken", done.stderr)
            self.assertIn("180 denied by a list", done.stderr)
            self.assert_near(losses(done), losses(reference), 0.02)
            self.assertEqual(apart(done), 0)

    def test_changed_pattern_is_told_and_learned_anew(self) -> None:
        done = self.good(attached("change"))
        self.assertIn("the pattern of reductions changed after", done.stderr)
        self.assertIn("4 reductions a step", done.stderr)
        self.assert_near(losses(done), losses(self.good(plain("change"))), 0.02)
        self.assertEqual(apart(done), 0)


class Infinite(Case):
    """A step whose gradients are infinite on one rank, and huge elsewhere on another."""

    def test_all_ranks_see_it_and_leave_the_same_step_out(self) -> None:
        for words, settings in (
            ([], {}),
            (["double"], {}),
            (["overlap"], {"MSDU_WIRE": "int8"}),
            ([], {"MSDU_WIRE": "float16"}),
        ):
            done = self.good(attached("spike", *words, **settings))
            reference = self.good(plain("spike", *words))
            self.assertTrue(log(done)[30].endswith("left out"), log(done)[30])
            self.assertEqual(done.stdout.count("left out"), 1)
            self.assert_near(losses(done), losses(reference), 0.02)
            self.assertEqual(apart(done), 0)
            self.assertIn("162 reductions taken as gradients", done.stderr)

    def test_local_steps_end_with_one_line(self) -> None:
        done = attached("unseen", MSDU_INTERVAL_STEPS="4", **SGD)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 3: tensor 'gradient 1' holds NaN or infinity in step", done.stderr)
        self.assertIn("with domain gradient, propagate gives it to all ranks", done.stderr)


class Ways(Case):
    """Calls by which gradients come."""

    def test_every_way_to_reduce_and_to_wait_gives_the_same_bits(self) -> None:
        reference = log(self.good(attached()))
        for word in ("overlap", "some", "any", "test", "apart", "counts", "counts overlap"):
            self.assertEqual(log(self.good(attached(*word.split()))), reference, word)
        # memory that moves says nothing, so the number has to be given
        self.assertIn("MSDU_ATTACH_TENSORS", self.good(attached("moving")).stderr)
        done = self.good(attached("moving", MSDU_ATTACH_TENSORS="3"))
        self.assertEqual(log(done), log(self.good(attached(MSDU_ATTACH_TENSORS="3"))))

    def test_sums_that_differ_between_ranks_are_told(self) -> None:
        meddle = f"LD_PRELOAD={program('attach_meddle')}.so"
        run = ("env", meddle, options.msdu, "run", "--", program("attach_trainer"))
        done = job(*run, MSDU_ATTACH="always")
        self.assertNotEqual(apart(done), 0, done.stderr)  # which is what the guard is for
        done = job(*run, MSDU_ATTACH="always", MSDU_ATTACH_GUARD="5")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MSDU_ATTACH_GUARD: ranks were given different sums before", done.stderr)

    def test_persistent_reductions_are_the_trainers_own_and_told(self) -> None:
        # MPICH 4.0 itself fails with MPI_Waitany and MPI_Waitsome
        for more in ([], ["test"], ["change"]):
            done = self.good(attached("persistent", *more, MSDU_WIRE="int4"))
            self.assertEqual(log(done), log(self.good(plain("persistent", *more))), more)
            self.assertIn("by calls that are not taken", done.stderr)
            self.assertIn(": 0 reductions taken as gradients", done.stderr)

    def test_fortran_names_are_reached(self) -> None:
        done = self.good(attached(name="attach_fortran", MSDU_ATTACH_TENSORS="1"))
        self.assert_near(losses(done), losses(self.good(plain(name="attach_fortran"))), 0.02)
        self.assertIn("1 reductions a step, 5000 elements", done.stderr)

    def test_mpi_f08_is_reached_or_told(self) -> None:
        if not os.access(program("attach_f08"), os.X_OK):
            self.skipTest(f"no Fortran compiler with mpi_f08 of {options.family}")
        reference = losses(self.good(plain(name="attach_f08")))
        for words in ([], ["in-place"], ["nonblocking"]):
            done = self.good(attached(*words, name="attach_f08", MSDU_ATTACH_TENSORS="1"))
            self.assert_near(losses(done), reference, 0.02)
            if words == ["nonblocking"]:
                self.assertIn("40 by calls that are not taken", done.stderr)
                self.assertEqual(losses(done), reference)
            else:
                self.assertIn("1 reductions a step, 5000 elements", done.stderr)


class Local(Case):
    """Local steps, for SGD as the settings describe it."""

    def test_equals_parameter_averaging_written_by_hand(self) -> None:
        settings = {**SGD, "MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "58"}
        done = self.good(attached("double", "steps=58", **settings))
        by_hand = plain(
            "double", "steps=58", "local=4", f"learned={LEARNED}", f"warmup={EXACT_FIRST}"
        )
        self.assert_near(losses(done), losses(self.good(by_hand)), 1e-11)
        self.assertLess(apart(done), 1e-9)
        synchronous = losses(self.good(plain("double", "steps=58")))
        self.assertGreater(abs(synchronous[-1] - losses(done)[-1]), 1e-6)

    def test_weight_decay_and_a_schedule_that_is_told_are_exact_too(self) -> None:
        words = ("double", "decay", "steps=58")
        optimizer = {"MSDU_WEIGHT_DECAY": "0.01", "MSDU_LR": "0.02", "MSDU_INTERVAL_STEPS": "4"}
        done = self.good(attached(*words, **optimizer, **SGD, MSDU_TOTAL_STEPS="58"))
        by_hand = plain(*words, "local=4", f"learned={LEARNED}", f"warmup={EXACT_FIRST}")
        self.assert_near(losses(done), losses(self.good(by_hand)), 1e-11)

    def test_a_rate_that_is_told_late_ends_the_job(self) -> None:
        done = attached("double", "late", MSDU_INTERVAL_STEPS="4", **SGD)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("msdu_attach_lr() was called for the first time after", done.stderr)

    def test_dampening_is_exact_though_the_first_call_was_not_seen(self) -> None:
        words = ("double", "damp", "steps=58")
        settings = {"MSDU_DAMPENING": "0.3", "MSDU_INTERVAL_STEPS": "4", **SGD}
        done = self.good(attached(*words, **settings, MSDU_TOTAL_STEPS="58"))
        warm = EXACT_FIRST - 1  # the library's own first step had no gradients
        by_hand = plain(*words, "local=4", f"learned={LEARNED}", f"warmup={warm}")
        self.assert_near(losses(done), losses(self.good(by_hand)), 1e-11)

    def test_equal_data_give_the_same_log_with_any_interval(self) -> None:
        reference = log(self.good(plain("double", "same")))
        for steps in ("2", "7"):
            done = self.good(attached("double", "same", MSDU_INTERVAL_STEPS=steps, **WHOLE))
            self.assertEqual(log(done), reference)

    def test_ranks_are_equal_where_it_is_asked_for(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "16", **SGD}
        for name, value in (("MSDU_TOTAL_STEPS", "60"), ("MSDU_ATTACH_EQUAL_STEPS", "15")):
            done = self.good(attached("double", **{**settings, name: value}))
            self.assertLess(apart(done), 1e-9, name)
        for total in ("0", "90"):  # the trainer's word for its last step is as good
            done = self.good(attached("double", "meet", **settings, MSDU_TOTAL_STEPS=total))
            self.assertLess(apart(done), 1e-9)
            self.assertNotIn("may differ", done.stderr)

    def test_an_end_before_the_last_step_is_an_error(self) -> None:
        # by chance behind a synchronization, and behind one of every fifteenth step, too
        for settings in ({}, {"MSDU_INTERVAL_STEPS": "2"}, {"MSDU_ATTACH_EQUAL_STEPS": "15"}):
            done = attached("double", **SGD, MSDU_TOTAL_STEPS="90", **settings)
            self.assertEqual(done.returncode, 16, done.stderr)
            self.assertIn("ended after 60 steps, MSDU_TOTAL_STEPS is 90", done.stderr)
        quiet = {**SGD, "MSDU_LOG": "error"}
        done = attached("double", **quiet, MSDU_INTERVAL_STEPS="16")
        self.assertEqual(done.returncode, 16, done.stderr)
        self.assertGreater(apart(done), 1e-6)
        self.assertIn("local steps ended after 60 steps of the trainer, and nothing", done.stderr)

    def test_the_guard_tells_of_ranks_that_did_not_meet(self) -> None:
        unmet = f"LD_PRELOAD={options.programs / 'attach_unmet.so'}"
        run = ("env", unmet, options.msdu, "run", "--", program("attach_trainer"), "double")
        settings = {**SGD, "MSDU_INTERVAL_STEPS": "16", "MSDU_ATTACH_EQUAL_STEPS": "15"}
        done = job(*run, **settings)  # the end sees it, and nobody before
        self.assertEqual(done.returncode, 16, done.stderr)
        done = job(*run, **settings, MSDU_ATTACH_GUARD="1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MSDU_ATTACH_GUARD: ranks differ behind a synchronization", done.stderr)


class Bytes(Case):
    """What is sent, and that training is as good."""

    def test_unknown_optimizer_sends_a_seventh(self) -> None:
        done = self.good(attached("large", "adam", "steps=40"))
        self.assertGreater(self.ratio(done), 7.5)
        self.assert_near(losses(done), losses(self.good(plain("large", "adam", "steps=40"))), 0.1)

    def test_momentum_with_local_steps_sends_a_sixteenth(self) -> None:
        settings = {**SGD, "MSDU_WIRE": "int4", "MSDU_TOTAL_STEPS": "60"}
        done = self.good(attached("large", MSDU_INTERVAL_STEPS="4", **settings))
        self.assertGreater(self.ratio(done), 16)
        self.assert_near(losses(done), losses(self.good(plain("large"))), 0.05)


class Changed(Case):
    """Other gradients than before, after 100 steps of local steps."""

    SETTINGS: ClassVar = {"MSDU_INTERVAL_STEPS": "7", **SGD}

    def changed(self, *words: str, steps: int, code: int = 0, **settings: str) -> list[float]:
        """By layer, how far ranks are apart `steps` steps after the change."""
        words = (*words, "at=100", f"steps={100 + steps}")
        done = self.good(attached(*words, **{**self.SETTINGS, **settings}), code)
        self.assertIn("the next two reductions of each gradient join the ranks", done.stderr)
        found = re.findall(r"^layer \d+ apart (\S+)$", done.stdout, re.MULTILINE)
        self.assertEqual(len(found), 4 if "change" in words else 3)
        self.told = done.stderr
        return [float(text) for text in found]


class Changes(Changed):
    """Another order; whatever the optimizer."""

    def test_another_order_joins_ranks_within_two_steps(self) -> None:
        self.assertGreater(self.changed("double", "reorder", steps=1, code=16)[0], 1e-6)
        self.assertIn("1 of 3 of a step, was not reduced any more", self.told)
        for steps in (2, 3):  # the third shows that momentum is equal, too
            self.assertLess(max(self.changed("double", "reorder", steps=steps)), 1e-12)
        self.assertIn("ranks are joined again", self.told)

    def test_an_end_far_before_the_last_step_is_an_error_behind_it_too(self) -> None:
        for total, code in (("105", 0), ("112", 0), ("400", 16)):
            words = ("double", "reorder", "at=100", "steps=105")
            done = attached(*words, **self.SETTINGS, MSDU_TOTAL_STEPS=total)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn("ranks are joined again", done.stderr)
        self.assertRegex(done.stderr, "error: the training ended after at most 1[01][0-9] steps")

    def test_whatever_the_optimizer_and_the_precision(self) -> None:
        decay = {"MSDU_WEIGHT_DECAY": "0.01", "MSDU_LR": "0.02"}
        for words, settings, limit in (
            (["double", "nesterov"], {"MSDU_NESTEROV": "yes"}, 1e-12),
            (["double", "plain"], {"MSDU_MOMENTUM": "0"}, 1e-12),
            (["double", "decay"], decay, 1e-12),
            (["double", "overlap"], {}, 1e-12),
            ([], {}, 1e-5),
            ([], {"MSDU_WIRE": "int4"}, 1e-5),
        ):
            ends = self.changed(*words, "reorder", steps=3, **settings)
            self.assertLess(max(ends), limit, (words, settings))


class Layers(Changed):
    """More of them, fewer, others."""

    def test_new_layer_joins_ranks_once_it_comes_every_step(self) -> None:
        self.assertLess(max(self.changed("double", "change", steps=6)), 1e-12)
        self.assertIn("one of 2000 elements, and what is like it, is passed through", self.told)

    def test_frozen_layer_ends_in_a_status_and_is_joined_when_it_comes_back(self) -> None:
        for level in ("info", "error"):
            ends = self.changed("double", "freeze", steps=3, code=16, MSDU_LOG=level)
            self.assertGreater(ends[0], 1e-6)
            self.assertLess(max(ends[1:]), 1e-12)
            told = "error: the gradient of 3001 elements, 1 of 3 of a step, was not reduced"
            self.assertEqual(self.told.count(told), 1, self.told)
        self.assertLess(max(self.changed("double", "thaw", steps=35)), 1e-12)
        # a new layer long afterwards cannot be what became of it
        ends = self.changed("double", "freeze", "change", "grown=130", steps=36, code=16)
        self.assertGreater(ends[0], 1e-6)
        self.assertLess(max(ends[1:]), 1e-12)

    def test_frozen_layer_that_is_equal_anyway_ends_well(self) -> None:
        # ranks have just synchronized; ranks draw the same
        for words, settings in (
            (("double",), {"MSDU_ATTACH_EQUAL_STEPS": "20"}),
            ((), {"MSDU_ATTACH_EQUAL_STEPS": "20"}),
            (("double", "same"), {}),
        ):
            ends = self.changed(*words, "freeze", steps=35, **settings)
            self.assertLess(max(ends), 1e-12 if "double" in words else 1e-5)
            self.assertNotIn("differ", self.told)
        done = self.good(attached("freeze", "at=30", "steps=60"))
        self.assertEqual(apart(done), 0)
        frozen = ("double", "freeze", "at=0", "steps=60")  # before there are local steps
        done = self.good(attached(*frozen, **{**WHOLE, "MSDU_ATTACH_TENSORS": "2"}))
        self.assertLess(apart(done), 1e-9)

    def test_gradient_that_is_reduced_once_is_told_where_that_is_not_enough(self) -> None:
        settings = {"MSDU_NESTEROV": "yes"}
        ends = self.changed("double", "nesterov", "reorder", steps=2, code=16, **settings)
        self.assertGreater(ends[0], 1e-6)
        told = "3001 elements, 1 of 3 of a step, was reduced only once after the change"
        self.assertIn(told, self.told)
        for words in (["double"], ["double", "plain"], []):
            settings = {"MSDU_MOMENTUM": "0"} if "plain" in words else {}
            ends = self.changed(*words, "reorder", steps=2, **settings)
            self.assertLess(max(ends), 1e-12 if "double" in words else 1e-5)

    def test_layer_in_two_parts_ends_the_job_with_one_line(self) -> None:
        done = attached("double", "resize", "at=100", "steps=160", **self.SETTINGS)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the gradient of 700 elements, 2 of 3 of a step, stays away", done.stderr)


class After(Changed):
    """What comes then."""

    def test_local_steps_go_on_with_the_new_pattern(self) -> None:
        for word, count in (("reorder", 3), ("change", 4), ("freeze", 2)):
            words = ("double", word, "at=100", "steps=220")
            settings = {**self.SETTINGS, "MSDU_ATTACH_TENSORS": "0", "MSDU_TOTAL_STEPS": "220"}
            done = self.good(attached(*words, **settings), 16 if word == "freeze" else 0)
            self.assertIn(f"{count} reductions a step", done.stderr.split("changed after")[-1])
            self.assert_near(losses(done), losses(self.good(plain(*words))), 0.1)
            if word != "freeze":
                self.assertLess(apart(done), 1e-9, word)

    def test_after_the_second_change_all_is_passed_through(self) -> None:
        words = ("thaw", "at=40", "steps=140")
        done = self.good(attached(*words))
        self.assertEqual(done.stderr.count("the pattern of reductions changed after"), 3)
        self.assertEqual(done.stderr.count("for the second time, so all is passed through"), 1)
        self.assertIn("the pattern changed 2 times", done.stderr)
        self.assertRegex(done.stderr, r"job: \d+ steps understood, and later ones not, \d+ of them")
        self.assertEqual(apart(done), 0)
        self.assert_near(losses(done), losses(self.good(plain(*words))), 0.02)

    def test_default_learns_anew(self) -> None:
        for word in ("freeze", "resize"):
            done = self.good(attached(word))
            self.assert_near(losses(done), losses(self.good(plain(word))), 0.02)


class Hostile(Case):
    """Each ends in correct training, or in a status and a line."""

    def test_children_of_the_trainer_do_no_error(self) -> None:
        reference = log(self.good(attached()))
        self.assertEqual(log(self.good(attached("forks"))), reference)

    def test_rank_that_reduces_something_else_is_told(self) -> None:
        done = attached("differ", MSDU_DEADLINE_MS="2000")
        self.assertNotEqual(done.returncode, 0)
        told = "rank 3: a reduction of 699 elements came|rank 3 did not reach operation"
        self.assertRegex(done.stderr, told)

    def test_it_is_told_under_local_steps(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "7", **SGD}
        done = attached("differ", MSDU_DEADLINE_MS="2000", **settings)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 3: a reduction of 699 elements came where another was", done.stderr)

    def test_rank_that_ends_early_is_named_at_once(self) -> None:
        # Nobody may have to wait for the deadline. Exact: else the others may be in a sum that is
        # passed through, where they wait in MPI as they would without the library.
        done = attached("leaves", MSDU_DEADLINE_MS="3600000", MSDU_DOMAIN="gradient")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 3 was lost (it finished and left the group", done.stderr)

    def test_killed_rank_ends_the_job(self) -> None:
        for settings in ({}, {"MSDU_INTERVAL_STEPS": "7", **SGD}):
            done = attached("dies", **settings)
            self.assertNotEqual(done.returncode, 0)
            self.assertLess(len(losses(done)), 60)


class Inert(unittest.TestCase):
    """What is no trainer."""

    def run_alone(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Without mpirun."""
        return subprocess.run(
            [options.msdu, "run", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def test_shells_and_their_children_see_nothing(self) -> None:
        done = self.run_alone("--", "sh", "-c", "echo $(echo inner | cat); exit 7")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "inner\n", ""))

    def test_trainer_under_a_shell_is_reached(self) -> None:
        command = f"exec {program('attach_trainer')} steps=20"
        done = job(options.msdu, "run", "--", "sh", "-c", command, MSDU_ATTACH="always")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("gradients recognized: 3", done.stderr)

    def test_static_program_is_told_and_runs(self) -> None:
        done = self.run_alone("--", str(options.programs / "attach_static"))
        self.assertEqual((done.returncode, done.stdout), (0, "static\n"))
        self.assertIn("linked statically", done.stderr)

    def test_missing_program_and_no_program(self) -> None:
        self.assertEqual(self.run_alone("--", "/nonesuch/trainer").returncode, 127)
        self.assertEqual(self.run_alone().returncode, 2)


def mpich_folder() -> str:
    """A folder with libmpi.so.12, as mpi4py's wheel wants MPICH to be called; Debian's is not."""
    folder = tempfile.TemporaryDirectory(prefix="msdu-test-")
    atexit.register(folder.cleanup)
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    found = re.search(r"libmpich\.so\.12 .*=> (\S+)", known.stdout)
    if found is not None:
        (Path(folder.name) / "libmpi.so.12").symlink_to(found.group(1))
    return folder.name


@functools.lru_cache(maxsize=None)
def pythons_with_mpi4py() -> list[list[str]]:
    """Commands of Pythons that have mpi4py over the MPI that is tested: the distribution's, with
    functions of int counts, and the wheel of mpi4py 4, with those of large counts."""
    family = {"openmpi": "Open MPI", "mpich": "MPICH"}[options.family]
    check = "import numpy, mpi4py.MPI as m; print(m.Get_library_version())"
    wheel = ["env", f"MPI4PY_MPIABI={options.family}"]
    if options.family == "mpich":
        wheel.append(f"LD_LIBRARY_PATH={mpich_folder()}")
    commands = [[sys.executable], ["/usr/bin/python3"], [*wheel, str(VENV / "bin" / "python")]]
    commands = [c for at, c in enumerate(commands) if c not in commands[:at]]
    return [c for c in commands if family in output_of(*c, "-c", check)]


def output_of(*command: str) -> str:
    """What it prints; nothing if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout


class Python(Case):
    """mpi4py, whose extension brings MPI into the process late."""

    def test_mpi4py_trainer_is_reached(self) -> None:
        source = str(Path(__file__).with_name("attach_trainer.py"))
        if not pythons_with_mpi4py():
            self.skipTest(f"no Python with NumPy and mpi4py over {options.family}")
        for python in pythons_with_mpi4py():
            self.check(*python, "-B", source)

    def check(self, *trainer: str) -> None:
        """The trainer by one Python."""
        reference = self.good(job(*trainer))
        command = (options.msdu, "run", "--", *trainer)
        # its arrays are new in every step, so their memory tells nothing
        done = self.good(job(*command, MSDU_ATTACH="always"))
        self.assertEqual(log(done), log(reference))
        self.assertIn("MSDU_ATTACH_TENSORS says how many", done.stderr)
        done = self.good(job(*command, MSDU_ATTACH="always", MSDU_ATTACH_TENSORS="1"))
        self.assert_near(losses(done), losses(reference), 0.05)
        self.assertIn("1 reductions a step, 4000 elements", done.stderr)
        self.assertGreater(self.ratio(done), 5)


def main() -> int:
    """Read what is ours from the command line; the rest is unittest's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", required=True)
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--msdu", required=True)
    parser.add_argument("--programs", required=True, type=Path)
    _, rest = parser.parse_known_args(namespace=options)
    if not os.access(options.mpirun, os.X_OK):
        print(f"skipped: no mpirun of {options.family}")
        return 77
    result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    if result.wasSuccessful() and len(result.skipped) == result.testsRun:
        return 77
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
