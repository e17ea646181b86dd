# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` on public idioms: at h = 1 in float32 bit for bit what the script does alone.

All scripts of a kind run in one launch, one after another, each at a port of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 - optimizers load it at their first use: once, before the fork
from forks import EXACT, attached, attachments, free_port, launch, plain, values
from torch.profiler import ProfilerActivity, profile

LOCAL = ["--interval", "fixed", "--interval-steps", "3", "--domain", "parameter"]
LOCAL += ["--warmup-steps", "0", "--wire", "float32"]
# Steps of the library by script: one for each backward pass that DDP reduces.
SCRIPTS: dict[tuple[str, ...], list[int]] = {
    ("nanogpt.py",): [6],
    ("lightning_auto.py",): [8],
    ("lightning_gan.py",): [20],
    ("accelerate_like.py", "accumulate"): [8],
    ("accelerate_like.py", "trigger"): [5],
    ("accelerate_like.py", "local_sgd"): [],
    ("timm_like.py",): [8],
    ("torchvision_like.py",): [15],
    ("hf_like.py", "clm"): [6],
    ("hf_like.py", "glue"): [6],
    ("dcgan.py",): [18, 6],
    ("lbfgs.py",): [12],
    ("frozen.py",): [5, 5],
    ("frozen.py", "static"): [5, 5],
    ("word_model.py",): [10],
    ("several.py",): [20],
    ("passes.py",): [10],
    ("regression.py",): [39],  # the first one is the script's own
}


def run_all(folder: Path, is_attached: bool) -> list[list[dict[str, Any]]]:
    """Results by rank and script."""
    ports = [free_port() for _ in SCRIPTS]

    def body(rank: int) -> list[dict[str, Any]]:
        found = []
        for (script, *words), port in zip(SCRIPTS, ports):
            os.environ["MASTER_PORT"] = str(port)
            how = attached(EXACT, script, *words) if is_attached else plain(script, *words)
            result = how(rank)
            found.append({**result, "made": [one.summary() for one in attachments()]})
        return found

    return list(values(launch(2, body, folder)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[Any]]:
    """By script, of each rank: what it did alone, and attached."""
    folder = tmp_path_factory.mktemp("idioms")
    alone, under = run_all(folder / "plain", False), run_all(folder / "msdu", True)
    return {
        script: [(alone[rank][at], under[rank][at]) for rank in range(2)]
        for at, script in enumerate(SCRIPTS)
    }


@pytest.mark.parametrize("script", SCRIPTS, ids="-".join)
def test_bit_for_bit(results: dict[Any, Any], script: tuple[str, ...]) -> None:
    for alone, under in results[script]:
        assert not alone["made"]
        assert under["losses"] == alone["losses"]
        assert under["hash"] == alone["hash"]


@pytest.mark.parametrize("script", SCRIPTS, ids="-".join)
def test_what_is_reduced_is_what_ddp_reduces(results: dict[Any, Any], script: Any) -> None:
    for _, under in results[script]:
        assert [one.steps for one in under["made"]] == SCRIPTS[script]
        for one in under["made"]:
            assert one.rounds - one.steps in (0, 1)  # buffers are averaged at the end
            assert (one.sent_steps, one.sent_wire) == (1, "float32")


def calls(body: Any, folder: Path) -> int:
    """How often torch's process group reduced something."""

    def counted(rank: int) -> int:
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            body(rank)
        return sum(one.count for one in seen.key_averages() if one.key == "gloo:all_reduce")

    first, second = values(launch(2, counted, folder))
    assert first == second
    return int(first)


def test_torchs_reducer_does_not_reduce_beside_the_library(tmp_path: Path) -> None:
    assert calls(plain("lightning_gan.py"), tmp_path) == 40  # two messages a pass
    assert calls(attached(EXACT, "lightning_gan.py"), tmp_path) == 0


def test_a_gradient_that_comes_again_is_refused(tmp_path: Path) -> None:
    for how in (plain("passes.py", "again"), attached(EXACT, "passes.py", "again")):
        outcomes = launch(2, how, tmp_path)
        assert [outcome.code for outcome in outcomes] == [1, 1]
        # the other rank may hear first that this one is gone
        problems = " ".join(outcome.problem for outcome in outcomes)
        assert "mark a variable ready" in problems or "two backward" in problems


def test_an_interval_counts_optimizer_steps_not_micro_batches(tmp_path: Path) -> None:
    def body(rank: int) -> tuple[int, int]:
        attached(LOCAL, "nanogpt.py")(rank)
        (made,) = [one.summary() for one in attachments()]
        return made.steps, made.rounds

    for steps, rounds in values(launch(2, body, tmp_path)):
        assert steps == 6  # of 24 micro-batches
        assert 0 < rounds < steps
