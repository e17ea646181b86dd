# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed and come back while the others train on (setting ranks_least)."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
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


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    made.close()


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


def test_newcomers_find_the_job_by_torchs_store_whoever_was_lost(tmp_path: Path) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "MSDU_RENDEZVOUS": ""}
    agents = {"TORCHELASTIC_USE_AGENT_STORE": "True"}  # no rank serves it
    job = Job(tmp_path, {**EXACT, **place, **agents, "TEST_PAUSE": "0.1"})
    try:
        job.start(3, TEST_WAITS="1", TORCHELASTIC_RESTART_COUNT="1")
        assert "ready" in job.read(3)
        for number in range(RANKS):
            job.start(number, 5 if number == 0 else -1)
        assert job.end(0)[-1] == {"accident": 5}
        late = job.end(3, "go\n")
        ends = [job.end(number)[-1] for number in (1, 2)] + [late[-1]]
    finally:
        job.close()
    assert late[0]["started"] > 5
    assert len({end["model"] for end in ends}) == 1
    assert [end["ranks"] for end in ends] == [RANKS] * RANKS


EPOCHS = 4
SAMPLES = 203


def check_samples(printed: dict[int, list[dict[str, Any]]], dead: list[int]) -> None:
    """Each sample of each epoch is in one step that counted. What a dead rank took for its own last
    step does not count where the others made that step anew."""
    living = [row for n, rows in printed.items() if n not in dead for row in rows if "ids" in row]
    steps = {(row["group"], row["step"]) for row in living}
    counted: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for rows in printed.values():
        for row in rows:
            if "ids" in row and (row["group"], row["step"]) in steps:
                counted[row["epoch"]].update(row["ids"])
    assert sorted(counted) == list(range(EPOCHS))
    for epoch, samples in counted.items():
        assert samples == collections.Counter(range(SAMPLES)), (epoch, samples.most_common(3))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("job", [{**EXACT, "TEST_PAUSE": "0.1"}], ids=["exact"], indirect=True)
def test_samples_of_a_lost_rank_are_given_to_the_others(job: Job, workers: int) -> None:
    def words(number: int, accident: int = -1) -> list[str]:
        return ["regroup_batches.py", *map(str, (number, EPOCHS, accident, workers))]

    job.run(7, words(7), TEST_WAITS="1")
    assert "ready" in job.read(7)
    for number in range(RANKS):  # rank 0 is lost in the second epoch
        job.run(number, words(number, 22 if number == 0 else -1))
    printed = {0: job.end(0)}
    assert printed[0][-1] == {"accident": 22}
    for number in (7, 1, 2):
        printed[number] = job.end(number, "go\n" if number == 7 else "")
    check_samples(printed, dead=[0])
    ends = [printed[number][-1] for number in (1, 2, 7)]
    assert len({(end["model"], end["ranks"], end["joined"]) for end in ends}) == 1
    assert (ends[0]["ranks"], ends[0]["joined"]) == (3, 1)
