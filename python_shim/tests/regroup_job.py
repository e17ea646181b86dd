# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are killed and come back (setting ranks_least)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
RANKS = 3
STEPS = 60
EXACT = {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "1", "MSDU_WIRE": "float32"}
LOCAL = {**EXACT, "MSDU_INTERVAL_STEPS": "5"}


class Job:
    """Processes of one job, by what they were started as."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._environment = {
            **os.environ,
            "MSDU_RANKS": str(RANKS),
            "MSDU_RENDEZVOUS": f"file://{folder}",
            "MSDU_RANKS_LEAST": "1",
            "MSDU_DEADLINE_MS": "20000",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def start(self, number: int, accident: int = -1, **environment: str) -> None:
        self.run(number, ["regroup.py", str(number), str(STEPS), str(accident)], **environment)

    def run(self, number: int, words: list[str], **environment: str) -> None:
        self.processes[number] = subprocess.Popen(
            [sys.executable, str(SCRIPTS / words[0]), *words[1:]],
            env={**self._environment, "MSDU_RANK": str(number % RANKS), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def read(self, number: int) -> str:
        """A line that a process prints."""
        out = self.processes[number].stdout
        assert out is not None
        return out.readline()

    def end(self, number: int, told: str = "") -> list[dict[str, Any]]:
        """What a process printed that was told this."""
        out, problem = self.processes[number].communicate(told, timeout=100)
        code = self.processes[number].returncode
        assert code in (0, -9), f"process {number}: {problem}"
        return [json.loads(line) for line in out.splitlines()]
