# SPDX-License-Identifier: Apache-2.0
"""Profiles recorded from a run, on a clock that the model's layers move themselves."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import nets
import pytest
import ranks
import torch
from test_attach import alone
from torch import nn
from torch.utils.checkpoint import checkpoint

import msdu
from msdu import _record

PASSES = _record._SKIPPED + 20


class Clock:
    """What the recorder reads instead of the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Costs(torch.autograd.Function):
    """Takes time in both passes, by the clock."""

    @staticmethod
    def forward(ctx: Any, clock: Clock, costs: tuple[float, float], x: torch.Tensor) -> Any:
        ctx.clock, ctx.cost = clock, costs[1]
        ctx.save_for_backward(x)  # what a checkpoint computes anew
        clock.now += costs[0]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        assert ctx.saved_tensors
        ctx.clock.now += ctx.cost
        return None, None, grads[0]


class Layer(nn.Module):
    """Forward and backward of known length; the latter is over when its gradient is there."""

    def __init__(self, clock: Clock, forward: float, backward: float, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count))
        self.clock, self.costs = clock, (forward, backward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + Costs.apply(self.clock, self.costs, self.weight).sum()


class Activation(nn.Module):
    """No parameters: its time is that of the layer before it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Costs.apply(self.clock, (0.5, 0.0), x)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(_record, "time", made)
    return made


def timed(clock: Clock) -> nn.Module:
    return nn.Sequential(Layer(clock, 1, 2, 7), Activation(clock), Layer(clock, 3, 4, 5))


def attach(model: nn.Module, path: Path, **settings: Any) -> tuple[Any, msdu.Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return optimizer, msdu.attach(model, optimizer, record=path, correct="average", **settings)


def one_pass(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(1)).sum().backward()
    optimizer.step()


def test_layers_have_their_own_times(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    model = timed(clock)
    optimizer, attachment = attach(model, path)
    for step in range(PASSES):
        assert path.stat().st_size == 0
        clock.now += 100  # between steps
        with torch.no_grad():
            model(torch.ones(1))  # an evaluation
        with attachment.no_sync():
            model(torch.ones(1)).sum().backward()
        if step == 5:
            model(torch.ones(1))  # broken off
        one_pass(model, optimizer)
    profile = json.loads(path.read_text())
    assert profile["format"] == _record.FORMAT and profile["name"] == "Sequential"
    assert [layer["name"] for layer in profile["layers"]] == ["0", "2"]
    assert [layer["forward_us"] for layer in profile["layers"]] == [1.5e6, 3e6]
    assert [layer["backward_us"] for layer in profile["layers"]] == [2e6, 4e6]
    assert profile["layers"][0]["tensors"] == [{"name": "0.weight", "count": 7}]
    attachment.record(tmp_path / "again.json", passes=1)  # the first is over
    attachment.close()


def test_a_short_run_writes_what_it_saw(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "profile.json"
    optimizer, attachment = attach(model := timed(clock), path)
    for _ in range(_record._SKIPPED + 1):
        one_pass(model, optimizer)
    attachment.finish()
    assert "median of 1 passes" in json.loads(path.read_text())["compute"]
    attachment.close()
    optimizer, attachment = attach(model := timed(clock), tmp_path / "none.json")
    one_pass(model, optimizer)
    attachment.close()
    assert "no profile" in caplog.text


def test_a_checkpoint_s_forward_is_part_of_the_backward(clock: Clock, tmp_path: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = timed(clock)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, x, use_reentrant=False)

    path = tmp_path / "profile.json"
    optimizer, attachment = attach(model := Checkpointed(), path)
    for _ in range(PASSES):
        one_pass(model, optimizer)
    layers = json.loads(path.read_text())["layers"]
    assert sum(layer["forward_us"] for layer in layers) == 4.5e6
    assert sum(layer["backward_us"] for layer in layers) == 10.5e6
    attachment.close()


def test_shared_frozen_and_mixed_tensors(clock: Clock, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    model[3].bias = nn.Parameter(model[3].bias.detach().double())
    model[3].forward = lambda x: nn.functional.linear(  # type: ignore[method-assign]
        x, model[3].weight, model[3].bias.float()
    )
    path = tmp_path / "profile.json"
    optimizer, attachment = attach(model, path)
    for _ in range(PASSES):
        clock.now += 1
        optimizer.zero_grad()
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
    layers = json.loads(path.read_text())["layers"]
    assert [layer["name"] for layer in layers] == ["0", "1", "3", "3#float64"]
    names = [tensor["name"] for layer in layers for tensor in layer["tensors"]]
    assert names == ["0.weight", "0.bias", "1.bias", "3.weight", "3.bias"]
    attachment.close()


def test_copies_of_the_model_record_nothing(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    _optimizer, attachment = attach(model := timed(clock), path)
    copied = copy.deepcopy(model)
    for _ in range(PASSES):
        copied(torch.ones(1)).sum().backward()
    assert path.stat().st_size == 0
    with pytest.raises(msdu.Error, match="not over"):
        attachment.record(tmp_path / "other.json")
    attachment.close()


def test_a_bad_path_is_an_error_at_once(tmp_path: Path) -> None:
    model = nets.mlp()
    with pytest.raises(OSError):
        attach(model, tmp_path / "missing" / "profile.json")
    _, attachment = attach(model, tmp_path / "profile.json")  # the first attachment is gone
    attachment.close()


def _recorded(path: Path, rank: int) -> bool:
    torch.manual_seed(1)
    model = nets.mlp()
    optimizer = nets.OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, record=path / f"{rank}.json"):
        nets.train(model, optimizer, range(PASSES), rank)
    return (path / f"{rank}.json").exists()


def _run_rank(path: str) -> bool:
    return _recorded(Path(path), int(os.environ["RANK"]))


def test_rank_0_writes_what_the_command_reads(tmp_path: Path) -> None:
    assert ranks.run(_run_rank, str(tmp_path)) == [True, False]
    profile = json.loads((tmp_path / "0.json").read_text())
    counts = sum(t["count"] for layer in profile["layers"] for t in layer["tensors"])
    assert counts == nets.flat(nets.mlp()).numel()
    command = Path(os.environ.get("MSDU_LIBRARY", "/")).parent.parent / "bin" / "msdu"
    if not command.exists():
        pytest.skip("no command msdu beside MSDU_LIBRARY")
    plan = [str(command), "plan", "--profile", str(tmp_path / "0.json"), "--json", "--up-to", "0"]
    records = json.loads(subprocess.run(plan, check=True, capture_output=True, text=True).stdout)
    assert {record["profile"] for record in records} == {"Sequential"}
    assert all(record["step_us"] >= record["bound_us"] * 0.995 for record in records)


def test_one_rank_alone_records_too(clock: Clock, tmp_path: Path) -> None:
    model, optimizer, attachment = alone()
    attachment.close()
    path = tmp_path / "profile.json"
    attachment = msdu.attach(model, optimizer, record=path)
    for step in range(PASSES):
        clock.now += 1
        nets.train(model, optimizer, range(step, step + 1), 0)
    assert path.stat().st_size > 0
    attachment.close()
