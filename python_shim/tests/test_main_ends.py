# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu``: ranks that die, and bad command lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from forks import EXACT, LOCAL, attached, launch

import msdu
from msdu.__main__ import main



@pytest.mark.parametrize("how", ["raise", "kill", "exit"])
@pytest.mark.parametrize("options", [EXACT, LOCAL], ids=["exact", "local"])
def test_a_rank_that_dies_ends_all(tmp_path: Path, how: str, options: list[str]) -> None:
    outcomes = launch(2, attached(options, "crash.py", how), tmp_path, MSDU_DEADLINE_MS="10000")
    one, other = outcomes
    assert one.code == 1, one.problem
    assert "rank 1" in one.problem or "msdu" in one.problem, one.problem
    assert other.code == {"raise": 1, "kill": -9, "exit": 1}[how]
    if how == "exit":
        assert other.problem.startswith("SystemExit: msdu: the script ended, but not on all")
    if how == "raise":
        assert "a bug of the script" in other.problem


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "which script?"),
        (["--intervall", "fixed", "x.py"], "did you mean interval"),
        (["--interval", "sometimes", "x.py"], "interval"),
        (["--interval-steps"], "needs a value"),
        (["--sync-every", "0", "x.py"], "a number of steps"),
        (["--buffers", "none", "x.py"], "average or local"),
        (["-x", "x.py"], "unknown option -x"),
        (["no_such_script.py"], "No such file"),
    ],
)
def test_bad_command_lines(
    words: list[str], text: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["msdu", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_help_lists_every_setting(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["msdu", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    text = capsys.readouterr().out
    for name in msdu.settings():
        assert f"--{name.replace('_', '-')}" in text
