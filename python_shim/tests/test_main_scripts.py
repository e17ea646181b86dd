# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu``: hooks of the script's own, several models, launchers, points of equality."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forks import EXACT, LOCAL, SCRIPTS, attached, lacks, launch, plain, values

HERE = Path(__file__).resolve().parent


def test_a_hook_of_the_scripts_own_stays(tmp_path: Path) -> None:
    expected = values(launch(2, plain("own_hook.py"), tmp_path / "plain"))
    outcomes = launch(2, attached(EXACT, "own_hook.py"), tmp_path / "msdu")
    assert values(outcomes) == expected
    said = outcomes[0].output
    assert said.count("not attached") == 1 and "fp16_compress_hook" in said
    assert "msdu" not in outcomes[1].output  # torch may have something to say about the host


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
    # the address: torch would ask a resolver for the host's own name, which a bare machine lacks
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    where += ["--local-addr", "127.0.0.1"]
    script = str(SCRIPTS / "ddp_train.py")
    done = command(*launcher, *where, "-m", "msdu", *LOCAL, script, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: 48 steps" in done.stderr and "parameter domain" in done.stderr


def test_a_launch_leaves_no_folders_behind(tmp_path: Path) -> None:
    """torchrun makes folders for its ranks' errors; a run of the tests takes them along."""
    (tmp_path / "test_one.py").write_text(
        "import os, subprocess, sys, tempfile\n"
        "def test_one():\n"
        "    tempfile.mkdtemp(prefix='torchelastic_')\n"
        "    made = 'import tempfile; tempfile.mkdtemp(prefix=\"msdu_test_\")'\n"
        "    subprocess.run([sys.executable, '-c', made], check=True)\n"
    )
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout
    kept = [one.name for one in (tmp_path / "tmp").iterdir()]
    assert all(name.startswith("pytest-of-") for name in kept), kept
