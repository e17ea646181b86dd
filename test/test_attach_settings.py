# SPDX-License-Identifier: Apache-2.0
"""Settings of `msdu run`: where they come from, and what is said of those that cannot hold.

Arguments as of test_attach.py.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from test_attach import SGD, Case, attached, log, main


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


if __name__ == "__main__":
    sys.exit(main())
