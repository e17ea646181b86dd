# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed and come back while the others train on (setting ranks_least)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "regroup.py"
RANKS = 3
STEPS = 60


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
        self.processes[number] = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(number), str(STEPS), str(accident)],
            env={**self._environment, "MSDU_RANK": str(number % RANKS), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self, number: int) -> str:
        """A line that a process prints."""
        out = self.processes[number].stdout
        assert out is not None
        return out.readline()

    def end(self, number: int, told: str = "") -> list[dict[str, Any]]:
        """What a process printed that was told this."""
        out, problem = self.processes[number].communicate(told, timeout=100)
        code = self.processes[number].returncode
        assert code in (0, -9), problem
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    for process in made.processes.values():
        process.kill()
        process.wait()


EXACT = {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "1", "MSDU_WIRE": "float32"}
LOCAL = {**EXACT, "MSDU_INTERVAL_STEPS": "5"}


@pytest.mark.parametrize(
    ("job", "lost"), [(EXACT, 0), (LOCAL, 2)], ids=["exact", "local"], indirect=["job"]
)
def test_the_others_train_on(job: Job, lost: int) -> None:
    for number in range(RANKS):
        job.start(number, 15 if number == lost else -1)
    ends = {number: job.end(number)[-1] for number in range(RANKS)}
    assert ends.pop(lost) == {"accident": 15}
    one, other = ends.values()
    assert one["model"] == other["model"]
    assert (one["ranks"], one["lost"], one["joined"]) == (2, 1, 0)
    if one["domain"] == "gradient":
        assert one["moments"] == other["moments"]


@pytest.mark.parametrize("job", [{**EXACT, "TEST_PAUSE": "0.1"}], ids=["exact"], indirect=True)
def test_a_process_that_comes_later_has_what_the_others_have(job: Job) -> None:
    job.start(7, TEST_WAITS="1")
    assert "ready" in job.read(7)
    for number in range(RANKS):
        job.start(number, 5 if number == 1 else -1)
    assert job.end(1)[-1] == {"accident": 5}
    late = job.end(7, "go\n")
    ends = [job.end(number)[-1] for number in (0, 2)] + [late[-1]]
    assert late[0]["ranks"] == RANKS
    assert late[0]["started"] > 5  # the position in the data
    for end in ends:
        assert (end["model"], end["moments"], end["lr"]) == (
            ends[0]["model"],
            ends[0]["moments"],
            ends[0]["lr"],
        )
        assert (end["ranks"], end["joined"]) == (RANKS, 1)
