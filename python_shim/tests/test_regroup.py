# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed and come back while the others train on (setting ranks_least)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from regroup_job import EXACT, LOCAL, RANKS, Job

from msdu import _regroup


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, request.param)
    yield made
    made.close()


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


class OfRank0:
    """A context whose ranks all get what rank 0 gave."""

    has_regrouped = False


def test_survivors_take_learning_rates_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has counted one iteration more at the loss, and its schedule has passed a boundary."""
    ranks = []
    given = []
    for steps in (10, 9):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
        for _ in range(steps):
            optimizer.step()
            schedule.step()
        kept = _regroup.Kept(OfRank0(), [optimizer])  # type: ignore[arg-type]
        kept.objects.append(schedule)
        ranks.append((kept, optimizer, schedule))

    def share(_: object, value: object) -> object:
        given.append(value)
        return given[0]

    monkeypatch.setattr(_regroup, "share", share)
    monkeypatch.setattr(_regroup.Kept, "_done", lambda _: None)
    for kept, _, _ in ranks:
        kept._are_due = True
        assert not kept.begin()
    assert [one.param_groups[0]["lr"] for _, one, _ in ranks] == [0.1, 0.1]
    assert ranks[1][2].last_epoch == 10
