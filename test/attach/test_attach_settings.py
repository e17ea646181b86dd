# SPDX-License-Identifier: Apache-2.0
"""Settings of `msdu run`: where they come from, and what is said of those that cannot hold.

Arguments as of test_attach.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import ClassVar

from test_attach import (
    RANKS,
    SGD,
    Case,
    attached,
    job,
    log,
    main,
    options,
    plain,
    program,
    pythons_with_mpi4py,
)


class File(Case):
    """An ini file."""

    def by_file(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """The trainer, with settings of the library in a file and those of attaching beside it."""
        own = {name: value for name, value in settings.items() if name.startswith("MSDU_ATTACH")}
        lines = [
            f"{name.removeprefix('MSDU_').lower()} = {value}\n"
            for name, value in settings.items()
            if name not in own
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.ini")
            path.write_text("".join(lines), encoding="utf-8")
            return self.good(attached(*words, MSDU_CONFIG=str(path), **own))

    def test_local_steps_by_a_file_are_those_by_variables(self) -> None:
        settings = {**SGD, "MSDU_INTERVAL_STEPS": "4", "MSDU_TOTAL_STEPS": "60"}
        for more in ({}, {"MSDU_DAMPENING": "0.5"}):
            done = self.by_file("double", **settings, **more)
            reference = self.good(attached("double", **settings, **more))
            self.assertIn("domain accumulated", done.stderr)
            self.assertEqual(log(done), log(reference))

    def test_what_mpi_does_is_left_to_mpi(self) -> None:
        done = self.by_file(MSDU_WIRE="float32")
        self.assertIn("exact as they are", done.stderr)


class Wrong(Case):
    """Settings that cannot hold."""

    SETTINGS: ClassVar = (
        ("MSDU_WIER", "int4", "did you mean MSDU_WIRE?"),
        ("MSDU_ATTACH", "maybe", "MSDU_ATTACH: 'maybe'"),
        ("MSDU_ATTACH_ALLOW", "flot32", 'MSDU_ATTACH_ALLOW: "flot32" is no'),
        ("MSDU_BACKEND", "gloo", "MSDU_BACKEND: 'gloo' cannot hold"),
        ("MSDU_CHECK_FINITE", "skip", "check_finite propagate gives NaN to all ranks"),
        ("MSDU_DOMAIN", "accumulated", "needs optimizer sgd"),
    )

    def test_the_trainer_does_not_start_under_msdu_run(self) -> None:
        for name, value, words in self.SETTINGS:
            done = attached(**{name: value})
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stdout.count("step "), 0)
            self.assertRegex(done.stderr, "msdu run: rank [0-3]: ")
            self.assertIn(words, done.stderr)

    def test_preloaded_alone_all_is_passed_through_with_a_line(self) -> None:
        library = str(options.programs.parent / "lib" / "libmsdu_preload.so")
        for name, value, words in self.SETTINGS:
            given = (f"{name}={value}", f"LD_PRELOAD={library}")
            done = self.good(job("env", *given, program("attach_trainer")))
            self.assertEqual(log(done), log(self.good(plain())))
            for rank in range(RANKS):
                line = f"msdu: rank {rank}: nothing is attached: "
                self.assertEqual(done.stderr.count(line), 1)
            self.assertIn(words, done.stderr)
            self.assertIn("0 reductions taken as gradients", done.stderr)


class Threads(unittest.TestCase):
    """MPI_THREAD_MULTIPLE."""

    def test_a_rate_is_told_beside_reductions_and_changes(self) -> None:
        settings = {**SGD, "MSDU_MOMENTUM": "0.5", "MSDU_INTERVAL_STEPS": "4", "MSDU_LR": "0.125"}
        trainer = program("attach_threads")
        reference = job(trainer, ranks=2)
        for words in ((), ("crossed",)):
            done = job(options.msdu, "run", "--", trainer, *words, ranks=2, **settings)
            self.assertEqual((reference.returncode, done.returncode), (0, 0), done.stderr)
            lines = sorted(reference.stdout.splitlines())
            self.assertEqual(sorted(done.stdout.splitlines()), lines)
            self.assertGreaterEqual(done.stderr.count("gradients recognized"), 2, done.stderr)
            self.assertIn("; domain accumulated", done.stderr)


PICKLED = """
from mpi4py import MPI
for _ in range(40):
    MPI.COMM_WORLD.allreduce([1.0] * 1000)
"""
TORCH = "import ctypes; ctypes.CDLL('libtorch_cpu.so')"  # as good as PyTorch, for what looks


class Nothing(unittest.TestCase):
    """A job in which no reduction is reached says so, once."""

    def told(self, done: subprocess.CompletedProcess[str], times: int) -> None:
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("msdu: nothing was attached: "), times, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), times, done.stderr)

    def test_a_program_that_reduces_nothing(self) -> None:
        probe = program("mpi_probe")
        self.told(job(options.msdu, "run", "--", probe, ranks=2), 1)
        self.told(job(options.msdu, "run", "--", probe, ranks=2, MSDU_ATTACH="off"), 0)
        self.told(job(options.msdu, "run", "--", probe, ranks=2, MSDU_LOG="error"), 0)

    def test_what_was_reached_is_told_by_its_summary(self) -> None:
        done = attached("steps=20")
        self.assertNotIn("nothing was attached", done.stderr)

    def test_pickled_reductions_of_mpi4py(self) -> None:
        if not pythons_with_mpi4py():
            self.skipTest(f"no Python with mpi4py over {options.family}")
        for python in pythons_with_mpi4py():
            done = job(options.msdu, "run", "--", *python, "-B", "-c", PICKLED, ranks=2)
            self.assertEqual(done.stderr.count("msdu: nothing was attached: "), 1)
            self.assertIn("comm.Allreduce is", done.stderr)

    def alone(self, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Without mpirun; a library that calls itself torch's can be found."""
        clean = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE")}
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(options.programs.parent / "lib" / "libmsdu.so", f"{folder}/libtorch_cpu.so")
            return subprocess.run(
                [options.msdu, "run", "--", *command],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**clean, "LD_LIBRARY_PATH": folder, **settings},
            )

    def test_a_training_program_without_mpi(self) -> None:
        trainer = (sys.executable, "-c", TORCH)
        done = self.alone(*trainer, RANK="0")
        self.told(done, 1)
        self.assertIn("python -m msdu", done.stderr)
        self.told(self.alone(*trainer, RANK="1"), 0)
        self.told(self.alone(*trainer), 0)
        self.told(self.alone(sys.executable, "-c", "pass", RANK="0"), 0)
        helper = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TORCH!r}])"
        self.told(self.alone(sys.executable, "-c", helper, RANK="0"), 0)

    def test_a_launcher_tells_nothing_and_its_rank_0_does(self) -> None:
        ranks = f'RANK=0 "$0" -c "{TORCH}"; RANK=1 "$0" -c "{TORCH}"; "$0" -c "{TORCH}"'
        self.told(self.alone("sh", "-c", ranks, sys.executable), 1)


if __name__ == "__main__":
    sys.exit(main())
