# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` on scripts that average gradients by torch.distributed.all_reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forks import attached, attachments, launch, plain, values

EXACT = ["--interval", "fixed", "--interval-steps", "1", "--wire", "float32"]
LOCAL = ["--interval", "fixed", "--interval-steps", "4", "--wire", "int8"]
OUT = "not attached"


def run(folder: Path, body: Any) -> list[dict[str, Any]]:
    """Results of a script's ranks, parameters as they are at the very end, and what was said."""

    def one(rank: int) -> dict[str, Any]:
        result = dict(body(rank))
        result["state"] = {k: v.clone() for k, v in result.pop("net").state_dict().items()}
        result["summaries"] = [one.summary() for one in attachments()]
        return result

    outcomes = launch(2, one, folder)
    found = values(outcomes)
    for result, outcome in zip(found, outcomes):
        result["output"] = outcome.output
    return found


@pytest.mark.parametrize("how", ["after", "before", "flat", "async"])
def test_interval_of_one_is_the_scripts_mean(tmp_path: Path, how: str) -> None:
    expected = run(tmp_path / "plain", plain("reduce_train.py", how))
    got = run(tmp_path / "msdu", attached(EXACT, "reduce_train.py", how))
    for one, other in zip(expected, got):
        assert one["losses"] == pytest.approx(other["losses"], rel=3e-6)
        (summary,) = other["summaries"]
        assert summary.domain == "gradient" and summary.steps == 23 and summary.rounds == 23
        for name, value in one["state"].items():
            assert torch.allclose(value, other["state"][name], rtol=1e-4, atol=3e-6), name


@pytest.mark.parametrize("how", ["after", "flat", "clamp", "hooks"])
def test_local_steps_train_and_end_equal(tmp_path: Path, how: str) -> None:
    got = run(tmp_path, attached(LOCAL, "reduce_train.py", how))
    losses = got[0]["losses"]
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6])
    assert not torch.equal(got[0]["last"], got[1]["last"])
    (summary,) = got[0]["summaries"]
    assert summary.domain == "parameter" and 0 < summary.rounds < summary.steps == 23
    for name, value in got[0]["state"].items():
        assert torch.equal(value, got[1]["state"][name]), name


def test_what_changes_between_reductions_stays_the_scripts(tmp_path: Path) -> None:
    options = [*EXACT, "--domain", "gradient"]
    expected = run(tmp_path / "plain", plain("reduce_train.py", "clamp"))
    got = run(tmp_path / "msdu", attached(options, "reduce_train.py", "clamp"))
    assert OUT in got[0]["output"] and OUT not in got[1]["output"]
    for one, other in zip(expected, got):
        assert one["losses"] == other["losses"] and not other["summaries"]
