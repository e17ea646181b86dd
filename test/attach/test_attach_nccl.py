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
from typing import ClassVar

import test_attach
from test_attach import EXACT_FIRST, PATIENCE_S, SGD

RANKS = "3"
ALWAYS = {"MSDU_ATTACH": "always", "MSDU_ATTACH_GUARD": "5"}
UNGUARDED = {"MSDU_ATTACH_GUARD": "0"}
LEARNED = 21  # steps of the trainer that are NCCL's own: 20 that have to hold, and one to begin

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
    """The trainer under `msdu run`, attached whether it gains anything or not."""
    settings = {**ALWAYS, **settings}
    trainer = str(options.programs / "attach_nccl_trainer")
    return Job([options.msdu, "run", "--", trainer, *words], settings, ranks)


class Case(test_attach.Case):
    """What all tests share."""

    def good(self, done: Job, code: int = 0) -> Job:
        """A job that ended well, or rank 0 as it should, trained, and left nothing behind."""
        codes = [code, *[0] * (len(done.codes) - 1)]
        self.assertEqual(done.codes, codes, done.stdout[-1000:] + done.stderr[-2000:])
        self.assertGreater(len(done.log()), 10, done.stdout + done.stderr)
        self.assertEqual(done.left, [])
        return done


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
        done = self.good(attached(MSDU_ATTACH_DENY="float32:513-3001,ranks=1000-"))
        self.assertIn("180 denied by a list", done.stderr)
        done = self.good(attached(MSDU_ATTACH_DENY="at=0-"))
        self.assertEqual(done.log(), reference)
        double = self.good(attached("double"))
        self.assertEqual(double.log(), self.good(plain("double")).log())
        self.assertIn("float64 with local steps", double.stderr)

    def test_local_steps_without_one_of_the_gradients_are_refused(self) -> None:
        settings = {"MSDU_OPTIMIZER": "sgd", "MSDU_TOTAL_STEPS": "60"}
        done = self.good(attached(MSDU_ATTACH_DENY="at=1", **settings))
        self.assertEqual(done.log(), self.good(plain()).log())
        self.assertIn("a list denies some by at=", done.stderr)

    def test_local_steps_for_adam_are_refused_with_the_reason(self) -> None:
        done = attached("adam", MSDU_DOMAIN="accumulated", MSDU_OPTIMIZER="adam")
        self.assertEqual(set(done.codes), {2})
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

    def test_a_list_by_name_is_refused(self) -> None:
        done = self.good(attached(MSDU_ATTACH_ALLOW="comm=rows"))
        self.assertEqual(done.log(), self.good(plain()).log())
        self.assertIn("NCCL tells no name", done.stderr)

    def test_large_layers_send_a_seventh(self) -> None:
        done = self.good(attached("large", "steps=40", ranks="2"))
        self.assertGreater(self.ratio(done), 7.0)
        reference = self.good(plain("large", "steps=40", ranks="2"))
        self.assert_near(done.losses(), reference.losses(), 0.1)


class Halves(Case):
    """Gradients of 16 bits, alone or beside float32."""

    def test_training_is_as_good_and_ranks_stay_equal(self) -> None:
        for words in (["bfloat"], ["half", "mean", "adam"], ["bfloat", "mixed"]):
            reference = self.good(plain(*words))
            done = self.good(attached(*words))
            self.assert_near(done.losses(), reference.losses(), 0.005)
            self.assertEqual(done.apart(), 0)
            self.assertIn("3 reductions a step", done.stderr)
            self.assertRegex(done.stderr, "1[56][0-9] reductions taken as gradients")
            self.assertNotEqual(done.log(), reference.log())

    def test_every_way_gives_the_same_bits(self) -> None:
        # memory that moves says nothing, so the number has to be given
        given = {"MSDU_ATTACH_TENSORS": "3"}
        for first in ("half", "bfloat"):
            reference = self.good(attached(first, **given)).log()
            for words in (["streams", "group"], ["moving", "apart"], ["poll", "group"], ["held"]):
                guard = UNGUARDED if words == ["held"] else {}
                done = self.good(attached(first, *words, **given, **guard))
                self.assertEqual(done.log(), reference, words)

    def test_bytes_are_counted_against_16_bits(self) -> None:
        done = self.good(attached("bfloat", "large", "steps=40", ranks="2"))
        self.assertGreater(self.ratio(done), 3.5)
        self.assertLess(self.ratio(done), 4.0)

    def test_what_gains_nothing_and_local_steps_are_passed_through(self) -> None:
        local = {"MSDU_DOMAIN": "accumulated", "MSDU_OPTIMIZER": "sgd"}
        for words in (["bfloat"], ["half"]):
            reference = self.good(plain(*words)).log()
            for settings in ({"MSDU_WIRE": wire} for wire in ("float32", "bfloat16", "float16")):
                done = self.good(attached(*words, **settings))
                self.assertEqual(done.log(), reference)
                self.assertIn("180 of 16 bits", done.stderr)
            done = self.good(attached(*words, **local))
            self.assertEqual(done.log(), reference)
            self.assertIn("180 of 16 bits (not with local steps", done.stderr)

    def test_changed_pattern_is_learned_anew(self) -> None:
        done = self.good(attached("bfloat", "change"))
        self.assertIn("4 reductions a step", done.stderr)
        self.assert_near(done.losses(), self.good(plain("bfloat", "change")).losses(), 0.005)
        self.assertEqual(done.apart(), 0)


class Infinite(Case):
    """A step whose gradients are infinite on one rank, and huge elsewhere on another."""

    def test_all_ranks_see_it_and_leave_the_same_step_out(self) -> None:
        for words, wire in (([], "int4"), (["group", "apart", "mean"], "int8"), ([], "float16"),
                            (["half"], "int4")):
            done = self.good(attached("spike", *words, MSDU_WIRE=wire))
            self.assertTrue(done.log()[30].endswith("left out"), done.log()[30])
            self.assertEqual(done.stdout.count("left out"), 1)
            self.assert_near(done.losses(), self.good(plain("spike", *words)).losses(), 0.02)
            self.assertEqual(done.apart(), 0)
            self.assertRegex(done.stderr, "1[56][0-9] reductions taken as gradients")

    def test_local_steps_end_with_a_line_within_the_deadline(self) -> None:
        local = {"MSDU_DOMAIN": "accumulated", "MSDU_OPTIMIZER": "sgd", "MSDU_MOMENTUM": "0.9",
                 "MSDU_INTERVAL": "fixed", "MSDU_WIRE": "float32", "MSDU_DEADLINE_MS": "3000",
                 "MSDU_ATTACH_TENSORS": "3"}
        for _ in range(3):
            done = attached("spike", **local)
            self.assertNotIn(0, done.codes)
            self.assertNotIn(-9, done.codes)
            self.assertRegex(done.stderr, "NaN or infinity|not finite")


class Ways(Case):
    """Every way to reduce gives the same bits."""

    def test_streams_groups_and_memory(self) -> None:
        given = {"MSDU_ATTACH_TENSORS": "3"}
        reference = self.good(attached(**given)).log()
        ways = (["group"], ["streams"], ["streams", "group"], ["moving", "apart"])
        for words in (*ways, ["poll"], ["poll", "group"], ["forks"], ["open"], ["abort"]):
            done = self.good(attached(*words, **given))
            self.assertEqual(done.log(), reference, words)
            self.assertIn("reductions taken as gradients", done.stderr)

    def test_no_call_waits_for_the_device(self) -> None:
        # but that which ends a guarded step does
        self.assertEqual(self.good(attached("held", **UNGUARDED)).log(), self.good(attached()).log())

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


class Guard(Case):
    """MSDU_ATTACH_GUARD: ranks compare what they were given."""

    def test_sums_that_differ_between_ranks_are_told(self) -> None:
        for words in ([], ["group"], ["streams", "group"], ["half", "apart"], ["poll"]):
            for first in ("150", "171"):  # behind a comparison, and before one
                worn = {"STANDIN_FLIP": first}
                done = self.good(attached(*words, **worn, **UNGUARDED))
                self.assertNotEqual(done.apart(), 0)  # which is what the guard is for
                done = attached(*words, **worn)
                self.assertNotIn(0, done.codes)
                told = "MSDU_ATTACH_GUARD: ranks were given different sums before step"
                for rank in range(int(RANKS)):
                    self.assertIn(f"msdu: rank {rank}: {told}", done.stderr, words)

    def test_a_clean_run_has_the_bits_of_one_without_it(self) -> None:
        for words in ([], ["group", "streams"], ["bfloat", "mixed"], ["large", "steps=40"],
                      ["pair"], ["poll", "group"], ["capture"], ["moving", "apart"]):
            given = {"MSDU_ATTACH_TENSORS": "3"}
            reference = self.good(attached(*words, **given, **UNGUARDED))
            self.assertIn("reductions taken as gradients", reference.stderr)
            for steps in ("1", "7"):
                done = self.good(attached(*words, **given, MSDU_ATTACH_GUARD=steps))
                self.assertEqual(done.log(), reference.log(), words)
                self.assertEqual(done.log("second "), reference.log("second "), words)

    def test_ranks_that_did_not_meet_are_told(self) -> None:
        unmet = str(options.programs / "attach_unmet.so")
        settings = {**SGD, "MSDU_INTERVAL_STEPS": "16", "MSDU_ATTACH_EQUAL_STEPS": "15",
                    "LD_PRELOAD": unmet}
        for words in (["double"], ["double", "group"]):
            self.good(attached(*words, **settings, **UNGUARDED))
            done = attached(*words, **settings)
            self.assertNotIn(0, done.codes)
            self.assertIn("MSDU_ATTACH_GUARD: ranks differ behind a synchronization", done.stderr)


class Local(Case):
    """Local steps, for SGD as the settings describe it."""

    def test_equals_parameter_averaging_written_by_hand(self) -> None:
        hand = ("local=4", f"learned={LEARNED}", f"warmup={EXACT_FIRST}")
        for words in (["double"], ["double", "group", "streams"], ["double", "mean"]):
            settings = {**SGD, "MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "59"}
            done = self.good(attached(*words, "steps=59", **settings))
            by_hand = self.good(plain(*words, "steps=59", *hand))
            self.assert_near(done.losses(), by_hand.losses(), 1e-11)
            self.assertLess(done.apart(), 1e-9)
            synchronous = self.good(plain(*words, "steps=59")).losses()
            self.assertGreater(abs(synchronous[-1] - done.losses()[-1]), 1e-6)

    def test_float32_too_to_its_rounding(self) -> None:
        settings = {**SGD, "MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "59"}
        done = self.good(attached("steps=59", **settings))
        hand = ("local=4", f"learned={LEARNED}", f"warmup={EXACT_FIRST}")
        self.assert_near(done.losses(), self.good(plain("steps=59", *hand)).losses(), 1e-5)

    def test_equal_data_give_the_same_log_with_any_interval(self) -> None:
        reference = self.good(plain("double", "same", "late", ranks="2")).log()
        for steps in ("2", "7"):
            settings = {**SGD, "MSDU_INTERVAL_STEPS": steps, "MSDU_TOTAL_STEPS": "60"}
            done = self.good(attached("double", "same", "late", ranks="2", **settings))
            self.assertEqual(done.log(), reference)

    def test_ranks_are_equal_where_it_is_asked_for(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "16", **SGD}
        for name, value in (("MSDU_TOTAL_STEPS", "60"), ("MSDU_ATTACH_EQUAL_STEPS", "15")):
            done = self.good(attached("double", **{**settings, name: value}))
            self.assertLess(done.apart(), 1e-9, name)
        for total in ("0", "90"):  # the trainer's word for its last step is as good
            done = self.good(attached("double", "meet", **settings, MSDU_TOTAL_STEPS=total))
            self.assertLess(done.apart(), 1e-9)

    def test_an_end_before_the_last_step_is_an_error(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "90", "MSDU_LOG": "error"}
        for words in (["double"], ["double", "open"], ["double", "abort"], ["double", "forks"]):
            done = attached(*words, **settings, **SGD)
            self.assertEqual(done.codes, [16, 0, 0], done.stderr)
            self.assertEqual(len(done.log()), 61)
            told = "rank 0: error: the training ended after 60 steps, MSDU_TOTAL_STEPS is 90"
            self.assertEqual(done.stderr.count(told), 1, done.stderr)
        done = attached("double", MSDU_INTERVAL_STEPS="16", **SGD)
        self.assertEqual(done.codes, [16, 0, 0], done.stderr)
        self.assertGreater(done.apart(), 1e-6)
        self.assertIn("local steps ended after 60 steps of the trainer, and nothing", done.stderr)

    def test_more_steps_than_there_are_end_the_job(self) -> None:
        settings = {"MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "40", **SGD}
        done = attached("double", **settings)
        self.assertNotIn(0, done.codes)
        self.assertIn("more steps came than MSDU_TOTAL_STEPS", done.stderr)


class Changes(Case):
    """Other gradients than before."""

    def test_changed_pattern_is_told_and_learned_anew(self) -> None:
        for words in (["change"], ["change", "group"]):
            done = self.good(attached(*words))
            self.assertIn("the pattern of reductions changed after", done.stderr)
            self.assertIn("4 reductions a step", done.stderr)
            self.assert_near(done.losses(), self.good(plain(*words)).losses(), 0.02)
            self.assertEqual(done.apart(), 0)


class Joins(Case):
    """Other gradients than before, after local steps."""

    SETTINGS: ClassVar = {"MSDU_INTERVAL_STEPS": "7", **SGD}

    def changed(self, *words: str, steps: int, code: int = 0, **settings: str) -> list[float]:
        """By layer, how far ranks are apart `steps` steps after the change."""
        words = (*words, "at=52", f"steps={52 + steps}")
        self.done = self.good(attached(*words, **{**self.SETTINGS, **settings}), code)
        self.assertIn("two reductions of each gradient join the ranks", self.done.stderr)
        found = re.findall(r"^layer \d+ apart (\S+)$", self.done.stdout, re.MULTILINE)
        self.assertEqual(len(found), 4 if "change" in words else 3)
        return [float(text) for text in found]

    def test_another_order_joins_ranks_within_two_steps(self) -> None:
        self.assertGreater(self.changed("double", "reorder", steps=1, code=16)[0], 1e-6)
        for steps in (2, 3):  # the third shows that momentum is equal, too
            self.assertLess(max(self.changed("double", "reorder", steps=steps)), 1e-12)
        self.assertIn("ranks are joined again", self.done.stderr)

    def test_an_end_far_before_the_last_step_is_an_error_behind_it_too(self) -> None:
        for total, code in (("57", 0), ("64", 0), ("400", 16)):
            words = ("double", "reorder", "at=52", "steps=57")
            done = attached(*words, **self.SETTINGS, MSDU_TOTAL_STEPS=total)
            self.assertEqual(done.codes, [code, 0, 0], done.stderr)
            self.assertIn("ranks are joined again", done.stderr)
        self.assertRegex(done.stderr, "error: the training ended after at most [5-7][0-9] steps")

    def test_every_way_to_reduce(self) -> None:
        for words, limit in (
            (["double", "group"], 1e-12),
            (["double", "streams"], 1e-12),
            (["double", "group", "streams", "apart"], 1e-12),
            (["double", "mean", "nesterov"], 1e-12),
            (["double", "poll"], 1e-12),
            (["double", "poll", "group"], 1e-12),
            (["double", "large"], 1e-12),
            (["late"], 1e-4),
        ):
            nesterov = {"MSDU_NESTEROV": "yes"} if "nesterov" in words else {}
            ends = self.changed(*words, "reorder", steps=3, **nesterov)
            self.assertLess(max(ends), limit, words)

    def test_ends_where_parameters_and_momentum_averaged_by_hand_do(self) -> None:
        for words in (["double", "reorder"], ["double", "reorder", "group", "mean"]):
            self.changed(*words, steps=3)
            hand = ("local=7", f"learned={LEARNED}", f"warmup={EXACT_FIRST}", "join", "at=52")
            by_hand = self.good(plain(*words, "steps=55", *hand)).log()[-1].split()
            ends = self.done.log()[-1].split()
            for at in (1, 2):
                self.assert_near([float(ends[at])], [float(by_hand[at])], 1e-11)

    def test_new_layer_joins_ranks_once_it_comes_every_step(self) -> None:
        for words in (["double"], ["double", "group"]):
            self.assertLess(max(self.changed(*words, "change", steps=6)), 1e-12, words)
            told = "one of 2000 elements, and what is like it, is passed through"
            self.assertIn(told, self.done.stderr)

    def test_frozen_layer_ends_in_a_status_and_is_joined_when_it_comes_back(self) -> None:
        ends = self.changed("double", "freeze", steps=3, code=16)
        self.assertGreater(ends[0], 1e-6)
        self.assertLess(max(ends[1:]), 1e-12)
        told = "error: the gradient of 513 elements, 1 of 3 of a step, was not reduced"
        self.assertEqual(self.done.stderr.count(told), 1, self.done.stderr)
        self.assertLess(max(self.changed("double", "thaw", steps=35)), 1e-12)
        ends = self.changed("double", "freeze", steps=35, MSDU_ATTACH_EQUAL_STEPS="26")
        self.assertLess(max(ends), 1e-12)
        self.assertNotIn("differ", self.done.stderr)

    def test_layer_in_two_parts_ends_the_job_with_one_line(self) -> None:
        done = attached("double", "resize", "at=50", "steps=90", **self.SETTINGS)
        self.assertNotIn(0, done.codes)
        told = "the gradient of 700 elements, 2 of 3 of a step, stays away"
        self.assertEqual(done.stderr.count(told), int(RANKS))

    def test_local_steps_go_on_with_the_new_pattern(self) -> None:
        for word, count in (("reorder", 3), ("change", 4), ("freeze", 2)):
            words = ("double", word, "at=50", "steps=110")
            settings = {**self.SETTINGS, "MSDU_TOTAL_STEPS": "110"}
            done = self.good(attached(*words, **settings), 16 if word == "freeze" else 0)
            self.assertIn(f"{count} reductions a step", done.stderr.split("changed after")[-1])
            self.assert_near(done.losses(), self.good(plain(*words)).losses(), 0.1)
            if word != "freeze":
                self.assertLess(done.apart(), 1e-9, word)


class Hostile(Case):
    """Each ends in correct training, or in a status and a line."""

    def test_rank_that_reduces_something_else_is_told(self) -> None:
        done = attached("differ", MSDU_DEADLINE_MS="3000")
        self.assertNotIn(0, done.codes)
        told = "rank 2: a reduction of (699|3001) elements came|rank 2 did not reach operation"
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
        done = self.good(Job([options.msdu, "run", "--", loader, late], ALWAYS, RANKS))
        self.assertEqual(done.log(), self.good(attached()).log())

    def test_two_copies_in_a_process_keep_their_own(self) -> None:
        loader = str(options.programs / "attach_nccl_loader")
        both = ",".join(str(options.programs / f"attach_nccl_late{x}.so") for x in ("", "_copy"))
        done = self.good(Job([options.msdu, "run", "--", loader, both, "open"], ALWAYS, RANKS))
        self.assertEqual(done.log(), 2 * self.good(attached()).log())
        self.assertEqual(done.stderr.count("reductions taken as gradients"), 2)

    def test_without_the_module_everything_is_passed_through(self) -> None:
        done = self.good(attached(MSDU_MODULE_PATH="/nonesuch"))
        self.assertEqual(done.log(), self.good(plain()).log())
        self.assertIn("no module for NCCL", done.stderr)


class Hosts(Case):
    """Ranks that share no files, as on several hosts: each has mounts of its own."""

    def test_ranks_meet_at_an_address(self) -> None:
        alone = ["unshare", "--mount"]
        if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("mounts of one's own are not allowed here")
        trainer = str(options.programs / "attach_nccl_trainer")
        settings = {"MSDU_INTERFACE": "lo", **ALWAYS}
        done = self.good(Job([*alone, options.msdu, "run", "--", trainer], settings, RANKS))
        self.assertEqual(done.log(), self.good(attached()).log())
        self.assertIn("reductions taken as gradients", done.stderr)
        settings = {"MSDU_INTERFACE": "none0", **ALWAYS}
        done = self.good(Job([*alone, options.msdu, "run", "--", trainer], settings, RANKS))
        self.assertEqual(done.log(), self.good(plain()).log())
        self.assertIn("not attached", done.stderr)


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
