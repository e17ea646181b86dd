# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` on scripts as users write them, the same files with and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import SCRIPTS, attached, attachments, lacks, launch, plain, values

import msdu
from msdu.__main__ import main

EXACT = ["--interval", "fixed", "--interval-steps", "1", "--wire", "float32"]
LOCAL = ["--interval", "fixed", "--interval-steps", "4", "--domain", "parameter", "--wire", "int8"]
VARIANTS = [
    ["sgd"],
    ["adamw", "clip"],
    ["unused"],
    ["accumulate"],
    ["amp", "view"],
    ["static"],
]


def run(folder: Path, body: Any, ranks: int = 2) -> list[dict[str, Any]]:
    """Results of a script's ranks: losses, and the parameters as they are after the very end."""

    def one(rank: int) -> dict[str, Any]:
        result = body(rank)
        net = result.pop("net", None)
        if net is not None:
            result["state"] = {k: v.clone() for k, v in net.state_dict().items()}
        result["made"] = len(attachments())
        return dict(result)

    return values(launch(ranks, one, folder))


@pytest.mark.parametrize("what", VARIANTS, ids="-".join)
def test_interval_of_one_is_plain_training(tmp_path: Path, what: list[str]) -> None:
    expected = run(tmp_path / "plain", plain("ddp_train.py", *what))
    got = run(tmp_path / "msdu", attached(EXACT, "ddp_train.py", *what))
    assert expected[0]["made"] == 0 and got[0]["made"] == 1
    tolerance = 2e-3 if "amp" in what else 2e-6
    for one, other in zip(expected, got):
        assert one["losses"] == pytest.approx(other["losses"], rel=tolerance)
        for name, value in one["state"].items():
            assert torch.allclose(value, other["state"][name], rtol=1e-4, atol=tolerance), name


@pytest.mark.parametrize("what", [["sgd"], ["adamw", "accumulate", "unused"]], ids="-".join)
def test_local_steps_train_and_end_equal(tmp_path: Path, what: list[str]) -> None:
    got = run(tmp_path, attached(LOCAL, "ddp_train.py", *what))
    losses = got[0]["losses"]
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert not torch.equal(got[0]["last"], got[1]["last"])  # as the script saw it: local
    for name, value in got[0]["state"].items():
        assert torch.equal(value, got[1]["state"][name]), name


def test_a_hook_of_the_scripts_own_stays(tmp_path: Path) -> None:
    expected = values(launch(2, plain("own_hook.py"), tmp_path / "plain"))
    outcomes = launch(2, attached(EXACT, "own_hook.py"), tmp_path / "msdu")
    assert values(outcomes) == expected
    said = outcomes[0].output
    assert said.count("not attached") == 1 and "fp16_compress_hook" in said
    assert outcomes[1].output == ""


def test_models_that_share_an_optimizer(tmp_path: Path) -> None:
    expected = values(launch(2, plain("two_models.py"), tmp_path / "plain"))
    outcomes = launch(2, attached(EXACT, "two_models.py"), tmp_path / "msdu")
    for one, other in zip(expected, values(outcomes)):
        for before, after in zip(one["losses"], other["losses"]):
            assert before == pytest.approx(after, rel=1e-4)
        assert one["scale"].item() == pytest.approx(other["scale"].item(), rel=1e-5)
    assert outcomes[0].output.count("rank 0 of 2") == 2  # two attachments


@pytest.mark.skipif(lacks("msdu_synchronize"), reason="this library has no msdu_synchronize()")
@pytest.mark.parametrize("options", [["--sync-every", "10"], ["--sync-on-eval"]], ids=str)
def test_ranks_are_equal_where_asked(tmp_path: Path, options: list[str]) -> None:
    got = values(launch(2, attached([*LOCAL, *options], "evaluate.py"), tmp_path))
    for one, other in zip(got[0]["weights"], got[1]["weights"]):
        assert one and all(torch.equal(a, b) for a, b in zip(one, other))


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


def command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command line as it is typed."""
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_ranks_that_the_script_spawns(tmp_path: Path) -> None:
    script = str(SCRIPTS / "spawned.py")
    done = command("-m", "msdu", *EXACT, script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: 6 steps, 6 rounds" in done.stderr
    assert (tmp_path / "net.pt").exists()


def test_under_torchrun(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    script = str(SCRIPTS / "ddp_train.py")
    done = command(*launcher, *where, "-m", "msdu", *LOCAL, script, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: 48 steps" in done.stderr and "parameter domain" in done.stderr


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
