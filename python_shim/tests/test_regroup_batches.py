# SPDX-License-Identifier: Apache-2.0
"""Samples of ranks that come and go: each is in one step that counts."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from regroup_job import EXACT, RANKS, Job


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    made.close()


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
