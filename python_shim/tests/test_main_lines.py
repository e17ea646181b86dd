# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu``: what is said, and when; models that are refused by name."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from forks import EXACT, attached, launch, values

import msdu
from msdu._summary import Sent

ENDINGS = {
    "alone": "did not initialize torch.distributed",
    "bare": "no DistributedDataParallel and no all_reduce",
    "no_sync": "(no_sync(), or require_backward_grad_sync was False)",
    "flag": "(no_sync(), or require_backward_grad_sync was False)",
    "by_hand": "no torch.optim optimizer owned",
    "fsdp": "sharded by FSDP (FullyShardedDataParallel)",
    "fsdp_orig": "sharded by FSDP (FullyShardedDataParallel)",
    "fully_shard": "sharded by FSDP2",
    "hsdp": "msdu.attach() in the script synchronizes replicas",
}


@pytest.mark.parametrize("what", ENDINGS)
def test_one_line_says_that_nothing_was_attached(tmp_path: Path, what: str) -> None:
    outcomes = launch(2, attached(EXACT, "endings.py", what), tmp_path)
    values(outcomes)
    said = [[x for x in one.output.splitlines() if x.startswith("msdu")] for one in outcomes]
    (line,) = said[0]
    assert line.startswith("msdu: nothing was attached, the script ran as without msdu: ")
    assert ENDINGS[what] in line
    assert not said[1]


# --- sharded models ---


def attach_sharded(what: str) -> tuple[str, bool]:
    """The refusal, and whether the parameters are as they were."""
    ranks.join_torch()
    net = nets.mlp(seed=1 + ranks.rank())
    if what == "fully_shard":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model: Any = fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(
            net, use_orig_params=what == "fsdp_orig", device_id=torch.device("cpu")
        )
    before = [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
    try:
        msdu.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return "", False
    except msdu.Error as problem:
        after = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
        return str(problem), all(torch.equal(a, b) for a, b in zip(before, after))


@pytest.mark.parametrize("what", ["fsdp", "fsdp_orig", "fully_shard"])
def test_sharded_models_are_refused_by_name(what: str) -> None:
    for text, is_kept in ranks.run(attach_sharded, what):
        assert "sharded" in text and "mesh['replicate']" in text
        assert ("FSDP" in text) == (what != "fully_shard")
        assert is_kept


# --- communication hooks ---


def late_hook(rank: int) -> str:
    """A script that registers a hook on a model that is attached."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from msdu import _intercept, _watch

    _intercept.install(_watch.Options({"interval": "fixed", "interval_steps": 1}))
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    try:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    except msdu.Error as problem:
        return str(problem)
    return ""


def test_a_hook_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    for text in values(launch(2, late_hook, tmp_path)):
        assert "allreduce_hook" in text and "attached" in text


# --- the summary ---


def test_the_summary_has_what_was_sent(tmp_path: Path) -> None:
    """The next plan is h 4 and fewer bits; six steps of mean gradients in float32 were sent."""
    options = ["--interval", "fixed", "--interval-steps", "4", "--warmup-steps", "6"]
    (outcome, _) = launch(2, attached(options, "nanogpt.py"), tmp_path)
    values([outcome])
    assert "6 steps, 6 rounds, h 1 (fixed), float32, gradient domain" in outcome.output


def summary_of(sent: int, plain: int) -> str:
    """The line of a run that sent so many bytes."""
    raw = msdu._abi.SummaryStruct(bytes_sent=sent, bytes_plain=plain)
    raw.wire = raw.domain = raw.interval = raw.reason = b""
    return str(msdu.Summary.of(raw))


def test_more_bytes_than_plain_are_called_more() -> None:
    assert "4.0 times fewer than plain" in summary_of(100, 400)
    assert "5.0 times more than plain" in summary_of(500, 100)
    assert "1.0 times fewer than plain" in summary_of(100, 100)


def test_what_most_rounds_were_sent_with() -> None:
    sent = Sent()
    for rounds, steps, wire in ((0, 1, b"float32"), (3, 4, b"int4"), (4, 8, b"int8"), (4, 9, b"")):
        raw = msdu._abi.SummaryStruct(
            rounds=rounds, interval_steps=steps, wire=wire, domain=b"", interval=b"", reason=b""
        )
        sent.note(raw)
    assert sent.plans.most_common(1) == [((4, "int4", ""), 3)]
    assert sent.plans[(8, "int8", "")] == 1 and len(sent.plans) == 2


# --- log lines, help ---


def logged(script: str) -> Any:
    """``python -m msdu`` on a script; the log's lines are not pytest's here."""
    body = attached(EXACT, script)

    def run(rank: int) -> None:
        logging.getLogger().handlers.clear()
        body(rank)

    return run


def test_settings_are_listed_once(tmp_path: Path) -> None:
    body = logged("two_models.py")
    first, second = launch(2, body, tmp_path, MSDU_LOG="info", MSDU_WIER="int4")
    values([first, second])
    for one in (first, second):
        listed = [line for line in one.output.splitlines() if ": interval_steps 1 (from" in line]
        assert len(listed) == 2  # of two attachments
        assert "backend local" not in one.output
        assert one.output.count("unknown variable MSDU_WIER") == (one is first)


@pytest.mark.parametrize("script", ["two_models.py", "own_hook.py"])  # attached, and not
def test_an_unknown_variable_is_told_once(tmp_path: Path, script: str) -> None:
    outcomes = launch(2, logged(script), tmp_path, MSDU_WIER="int4")
    values(outcomes)
    assert [one.output.count("unknown variable MSDU_WIER") for one in outcomes] == [1, 0]
    assert "did you mean MSDU_WIRE?" in outcomes[0].output


def test_help_into_a_pipe_that_closes() -> None:
    command = [sys.executable, "-m", "msdu", "--help"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert job.stdout is not None and job.stderr is not None
    job.stdout.close()
    assert job.stderr.read() == b""
    assert job.wait() in (0, 1)
