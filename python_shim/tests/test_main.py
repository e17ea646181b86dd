# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` on scripts as users write them, the same files with and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forks import EXACT, LOCAL, attached, lacks, plain, runs

VARIANTS = [
    ["sgd"],
    ["adamw", "clip"],
    ["unused"],
    ["accumulate"],
    ["amp", "view"],
    ["static", "eval"],
]


@pytest.mark.parametrize("what", VARIANTS, ids="-".join)
def test_interval_of_one_is_plain_training(tmp_path: Path, what: list[str]) -> None:
    expected = runs(tmp_path / "plain", plain("ddp_train.py", *what))
    got = runs(tmp_path / "msdu", attached(EXACT, "ddp_train.py", *what))
    assert not expected[0]["summaries"] and len(got[0]["summaries"]) == 1
    tolerance = 2e-3 if "amp" in what else 2e-6
    for one, other in zip(expected, got):
        assert one["losses"] == pytest.approx(other["losses"], rel=tolerance)
        for name, value in one["state"].items():
            assert torch.allclose(value, other["state"][name], rtol=1e-4, atol=tolerance), name


@pytest.mark.parametrize("what", [["sgd"], ["adamw", "accumulate", "unused"]], ids="-".join)
def test_local_steps_train_and_end_equal(tmp_path: Path, what: list[str]) -> None:
    got = runs(tmp_path, attached(LOCAL, "ddp_train.py", *what))
    losses = got[0]["losses"]
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert not torch.equal(got[0]["last"], got[1]["last"])  # as the script saw it: local
    for name, value in got[0]["state"].items():
        assert torch.equal(value, got[1]["state"][name]), name


@pytest.mark.skipif(lacks("msdu_join"), reason="this library has no msdu_join()")
@pytest.mark.parametrize("options", [EXACT, LOCAL], ids=["exact", "local"])
def test_uneven_epochs_end_equal(tmp_path: Path, options: list[str]) -> None:
    got = runs(tmp_path, attached(options, "uneven.py"))
    assert len(got[0]["summaries"]) == 1
    for name, value in got[0]["state"].items():
        assert torch.equal(value, got[1]["state"][name]), name


def test_one_rank_is_plain_training(tmp_path: Path) -> None:
    expected = runs(tmp_path / "plain", plain("ddp_train.py", "adamw"), ranks=1)
    got = runs(tmp_path / "msdu", attached([], "ddp_train.py", "adamw"), ranks=1)
    assert len(got[0]["summaries"]) == 1
    assert expected[0]["losses"] == got[0]["losses"]
