#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/membership/goodput.py: two ranks on the loopback, one of which is killed and comes back.

Exit status 77 where torch is not installed.
"""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import torch  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "membership" / "goodput.py"


class Goodput(unittest.TestCase):
    def run_ranks(self, folder: pathlib.Path, *words: str) -> str:
        ranks = [subprocess.Popen(
            [sys.executable, "-B", str(SCRIPT), "--parameters", "1600", "--compute", "0.02",
             "--out", str(folder), *words],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MSDU_RANK": str(rank),
                 "MSDU_RANKS": "2", "PYTHONPATH": str(ROOT / "python_shim")},
            stderr=subprocess.PIPE) for rank in range(2)]
        problems = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], problems)
        return subprocess.run([sys.executable, "-B", str(SCRIPT), "--report", str(folder)],
                              check=True, capture_output=True, text=True).stdout

    def test_a_loss_and_a_return(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            line = self.run_ranks(pathlib.Path(folder), "--every", "15", "--away", "0",
                                  "--seconds", "32")
            found = re.search(r"([0-9.]+) steps of ranks per second over .* ([0-9]+) losses", line)
            self.assertIsNotNone(found, line)
            self.assertGreater(float(found[1]), 1)
            self.assertGreaterEqual(int(found[2]), 1)
            self.assertNotIn("to its end -", line)


if __name__ == "__main__":
    unittest.main()
