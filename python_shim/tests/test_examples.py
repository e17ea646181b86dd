# SPDX-License-Identifier: Apache-2.0
"""The PyTorch examples of the repository learn a small task, by two processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import SCRIPTS, attached, launch, plain, values

EXAMPLES = SCRIPTS.parents[2] / "examples"


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(head + array.astype(np.uint8).tobytes())


@pytest.fixture(name="folder")
def idx_folder(tmp_path: Path) -> Path:
    """Images whose bright row tells the class, under noise, as MNIST's files."""
    made = np.random.default_rng(1)
    for prefix, count in (("train", 640), ("t10k", 120)):
        labels = made.integers(0, 8, count)
        images = made.integers(0, 120, (count, 8, 8))
        images[np.arange(count), labels] += 130
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", labels)
    return tmp_path


def accuracies(output: str) -> list[float]:
    return [float(one) for one in re.findall(r"accuracy ([0-9.]+) %", output)]


LOCAL = ["--interval", "fixed", "--interval-steps", "4", "--domain", "parameter", "--buffers"]


@pytest.mark.parametrize("options", [None, ["--wire", "float32"], [*LOCAL, "average"]], ids=str)
def test_ddp_train(folder: Path, options: list[str] | None) -> None:
    words = [str(EXAMPLES / "ddp_train.py"), "--data", str(folder), "--epochs", "4"]
    body = plain(*words) if options is None else attached(options, *words)
    outcomes = launch(2, body, folder / "run")
    values(outcomes)
    found = accuracies(outcomes[0].output)
    assert len(found) == 4 and found[-1] > 50  # of eight classes
    assert ("msdu: rank 0 of 2: 80 steps" in outcomes[0].output) == (options is not None)


def test_pytorch_trainer(folder: Path) -> None:
    words = [str(EXAMPLES / "pytorch_trainer.py"), "--data", str(folder), "--epochs", "4"]
    outcomes = launch(2, plain(*words), folder / "run")
    values(outcomes)
    found = accuracies(outcomes[0].output)
    assert len(found) == 4 and found[-1] > 50
    assert "rank 0 of 2: 80 steps" in outcomes[0].output


def test_fsdp_train(folder: Path) -> None:
    words = [str(EXAMPLES / "fsdp_train.py"), "--data", str(folder), "--epochs", "4"]
    outcomes = launch(4, plain(*words), folder / "run")
    values(outcomes)
    found = accuracies(outcomes[0].output)
    assert len(found) == 4 and found[-1] > 50
    assert "rank 0 of 2: 40 steps" in outcomes[0].output


def test_uneven_ranks(folder: Path) -> None:
    """DDP and rounds by the clock, one after the other; what it tells of them."""
    words = [str(EXAMPLES / "uneven_ranks.py"), "--data", str(folder), "--steps", "60"]
    outcomes = launch(2, plain(*words), folder / "run")
    values(outcomes)
    output = outcomes[0].output
    assert re.search(r"(?m)^  DDP .* s  accuracy .* %  step 60$", output)
    assert re.search(
        r"(?m)^ msdu .* s  accuracy .* %  step [0-9]+, round [0-9]+, [a-z]+, h [0-9]+", output
    )
    assert len(re.findall(r"(?m)^rank [01]: [0-9]+ steps, missed [0-9]+ rounds$", output)) == 2
    assert "points of" in output.splitlines()[-1]


def test_pipeline_train(tmp_path: Path) -> None:
    """On the repository's documents, two replicas of two stages; a checkpoint at the end."""
    pytest.importorskip("pipelines")
    script = EXAMPLES / "pipeline_train.py"
    saved = tmp_path / "saved.pt"
    drawn = tmp_path / "schedule.json"
    words = [str(script), "--steps", "30", "--replicas", "2", "--blocks", "2", "--save", str(saved)]
    words += ["--compare", "--schedule", str(drawn)]
    outcomes = launch(4, plain(*words), tmp_path / "run")
    values(outcomes)
    output = outcomes[0].output
    found = [float(one) for one in re.findall(r"loss ([0-9.]+)", output)]
    assert len(found) == 3 and found[-1] < 3.5 < found[0] + 0.5
    assert "30 steps of 8 micro-batches" in output
    assert "times as fast" in output
    assert json.loads(drawn.read_text())["ranks"]
    assert len(torch.load(saved)["optimizer"]) == 4
    outcomes = launch(
        1, plain(str(script), "--data", str(tmp_path / "none.txt")), tmp_path / "none"
    )
    assert "none.txt; --data names a file" in outcomes[0].problem
