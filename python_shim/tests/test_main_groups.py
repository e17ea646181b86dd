# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` on scripts that reduce over process groups of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # DDP and optimizers load it at their first use: once, before the fork
from forks import EXACT, attached, plain, runs

LOCAL = ["--interval", "fixed", "--interval-steps", "4", "--wire", "int8"]


@pytest.mark.parametrize("how", ["ddp", "reduce", "flat"])
def test_interval_of_one_is_the_groups_mean(tmp_path: Path, how: str) -> None:
    expected = runs(tmp_path / "plain", plain("group_train.py", how), ranks=4)
    got = runs(tmp_path / "msdu", attached(EXACT, "group_train.py", how), ranks=4)
    steps = 24 if how == "ddp" else 23  # a script's first step is its own
    for rank, (one, other) in enumerate(zip(expected, got)):
        assert one["losses"] == other["losses"]
        (summary,) = other["summaries"]
        assert (summary.ranks, summary.rank) == (2, rank // 2)
        assert summary.domain == "gradient" and summary.steps == summary.rounds == steps
        for name, value in one["state"].items():
            assert torch.equal(value, other["state"][name]), name
        lines = [x for x in other["output"].splitlines() if x.startswith("msdu: group of ranks")]
        assert bool(lines) == (rank < 2)  # the first of each group
        assert all(f"group of ranks {rank}, {rank + 2}: " in line for line in lines)


@pytest.mark.parametrize("how", ["ddp", "reduce"])
def test_local_steps_end_equal_in_each_group(tmp_path: Path, how: str) -> None:
    got = runs(tmp_path, attached(LOCAL, "group_train.py", how), ranks=4)
    for rank, one in enumerate(got):
        assert sum(one["losses"][-6:]) < 0.9 * sum(one["losses"][:6])
        (summary,) = one["summaries"]
        assert summary.domain == "parameter" and 0 < summary.rounds < summary.steps
        for name, value in one["state"].items():
            assert torch.equal(value, got[(rank + 2) % 4]["state"][name]), name
            assert not torch.equal(value, got[rank ^ 1]["state"][name]), name
    assert not torch.equal(got[0]["last"], got[2]["last"])


@pytest.mark.parametrize(("how", "why"), [("two", "over 2 process groups"), ("again", "groups")])
def test_several_groups_stay_the_scripts(tmp_path: Path, how: str, why: str) -> None:
    expected = runs(tmp_path / "plain", plain("group_train.py", how), ranks=4)
    got = runs(tmp_path / "msdu", attached(EXACT, "group_train.py", how), ranks=4)
    for one, other in zip(expected, got):
        assert one["losses"] == other["losses"] and not other["summaries"]
        for name, value in one["state"].items():
            assert torch.equal(value, other["state"][name]), name
    lines = [x for x in got[0]["output"].splitlines() if x.startswith("msdu: not attached")]
    assert len(lines) == 1 and why in lines[0]
