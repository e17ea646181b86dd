# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` on scripts that average gradients by torch.distributed.all_reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forks import EXACT, attached, launch, plain, runs, values

LOCAL = ["--interval", "fixed", "--interval-steps", "4", "--wire", "int8"]
OUT = "not attached"


@pytest.mark.parametrize("how", ["after", "before", "flat", "async"])
def test_interval_of_one_is_the_scripts_mean(tmp_path: Path, how: str) -> None:
    expected = runs(tmp_path / "plain", plain("reduce_train.py", how))
    got = runs(tmp_path / "msdu", attached(EXACT, "reduce_train.py", how))
    for one, other in zip(expected, got):
        assert one["losses"] == pytest.approx(other["losses"], rel=3e-6)
        (summary,) = other["summaries"]
        assert summary.domain == "gradient" and summary.steps == 23 and summary.rounds == 23
        for name, value in one["state"].items():
            assert torch.allclose(value, other["state"][name], rtol=1e-4, atol=3e-6), name


@pytest.mark.parametrize("how", ["after", "flat", "clamp", "hooks"])
def test_local_steps_train_and_end_equal(tmp_path: Path, how: str) -> None:
    got = runs(tmp_path, attached(LOCAL, "reduce_train.py", how))
    losses = got[0]["losses"]
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6])
    assert not torch.equal(got[0]["last"], got[1]["last"])
    (summary,) = got[0]["summaries"]
    assert summary.domain == "parameter" and 0 < summary.rounds < summary.steps == 23
    for name, value in got[0]["state"].items():
        assert torch.equal(value, got[1]["state"][name]), name


def test_what_changes_between_reductions_stays_the_scripts(tmp_path: Path) -> None:
    options = [*EXACT, "--domain", "gradient"]
    expected = runs(tmp_path / "plain", plain("reduce_train.py", "clamp"))
    got = runs(tmp_path / "msdu", attached(options, "reduce_train.py", "clamp"))
    assert OUT in got[0]["output"] and OUT not in got[1]["output"]
    for one, other in zip(expected, got):
        assert one["losses"] == other["losses"] and not other["summaries"]


class _Calls:
    """Reductions with a script, an all_reduce and an attachment that only take notes."""

    def __init__(self, optimizers: int = 1) -> None:
        from msdu._manual import Reductions

        self.params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2 * optimizers)]
        pairs = zip(self.params[::2], self.params[1::2])
        self.optimizers = [torch.optim.SGD(pair, lr=0.1) for pair in pairs]
        self.said: list[str] = []
        self.attached: list[tuple[int, bool]] = []
        self.all = Reductions(lambda: self.optimizers, self.attach, self.said.append)

    def attach(self, owners: Any, must_be_local: bool, group: Any) -> None:
        assert group is None
        self.attached.append((len(owners), must_be_local))

    def backward(self) -> None:
        for param in self.params:
            param.grad = torch.rand(3)

    def reduce(self, *tensors: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        for tensor in tensors:
            self.all.reduce(lambda *_: None, tensor, op, None, False)

    def grads(self, *indices: int) -> list[torch.Tensor]:
        found = [self.params[index].grad for index in indices]
        return [grad for grad in found if grad is not None]


def learning(_: int) -> dict[str, Any]:
    """What is concluded from a first step, by case."""
    dist.init_process_group("gloo")
    found = {}

    def case(name: str, script: Any, optimizers: int = 1) -> None:
        calls = _Calls(optimizers)
        calls.backward()
        script(calls)
        found[name] = (calls.attached, calls.said)

    def step(calls: _Calls, *indices: int) -> None:
        for index in indices:
            calls.all.stepped(calls.optimizers[index])

    def other(calls: _Calls) -> None:  # of a gradient's size, but not one
        calls.reduce(torch.ones(3), torch.ones(6), torch.ones(()))
        step(calls, 0)

    def part(calls: _Calls) -> None:
        calls.reduce(*calls.grads(0))
        step(calls, 0)

    def largest(calls: _Calls) -> None:
        calls.reduce(*calls.grads(0, 1), op=dist.ReduceOp.MAX)
        step(calls, 0)

    def twice(calls: _Calls) -> None:
        calls.reduce(*calls.grads(0, 1, 0, 1))
        step(calls, 0)

    def two(calls: _Calls) -> None:
        calls.reduce(*calls.grads(0, 1, 2, 3))
        step(calls, 0, 1)

    def late(calls: _Calls) -> None:  # the second one steps every other time only
        calls.reduce(*calls.grads(0, 1, 2, 3))
        step(calls, 0)
        calls.backward()
        calls.reduce(*calls.grads(0))

    case("other", other)
    case("part", part)
    case("largest", largest)
    case("twice", twice)
    case("two", two, optimizers=2)
    case("late", late, optimizers=2)
    dist.destroy_process_group()
    return found


def test_what_a_first_step_shows(tmp_path: Path) -> None:
    (found,) = values(launch(1, learning, tmp_path))
    assert found["other"] == ([], [])
    assert found["part"][0] == [] and "1 of the optimizer's" in found["part"][1][0]
    assert found["largest"][0] == [] and "another operation" in found["largest"][1][0]
    assert found["twice"][0] == [] and "more than once" in found["twice"][1][0]
    assert found["two"] == ([(2, False)], [])
    assert found["late"] == ([(2, False)], [])
