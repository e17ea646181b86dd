# SPDX-License-Identifier: Apache-2.0
"""Layers are timed as they will run, under a quota of the processor, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from msdu import _stages_passes, _stages_probe

PERIOD_S = 0.1  # of Docker and Kubernetes


class Machine:
    """A clock that computing moves on, and a quota that is used up in each period."""

    def __init__(self, share: float, period_s: float) -> None:
        self.now = 0.0
        self._quota_s, self._period_s, self._used_s = share * period_s, period_s, 0.0
        self._end_s = period_s

    def perf_counter(self) -> float:
        """Seconds."""
        return self.now

    def compute(self, seconds: float) -> None:
        """At full speed, and not at all for the rest of the period once the quota is used up."""
        while seconds > 0:
            if self.now >= self._end_s:
                self._end_s, self._used_s = self._end_s + self._period_s, 0.0
            part = min(seconds, self._quota_s - self._used_s, self._end_s - self.now)
            self.now += part
            self._used_s += part
            seconds -= part
            if seconds > 0 and self._quota_s - self._used_s < 1e-9:
                self.now = self._end_s
            elif self._end_s - self.now < 1e-9:
                self.now = self._end_s


class _Takes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, machine: Machine, seconds: float) -> torch.Tensor:
        ctx.machine, ctx.seconds = machine, seconds
        machine.compute(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.machine.compute(2 * ctx.seconds)
        return grad, None, None


class Layer(nn.Linear):
    """Takes so long forward, and twice as long backward."""

    def __init__(self, machine: Machine, seconds: float) -> None:
        super().__init__(2, 2)
        self._machine, self._seconds = machine, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Takes.apply(super().forward(x), self._machine, self._seconds)


def timed(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, layers_s: list[float]
) -> _stages_probe.Look:
    monkeypatch.setattr(_stages_passes, "time", machine)
    monkeypatch.setattr(_stages_probe, "time", machine)
    made = [lambda s=s: Layer(machine, s) for s in layers_s]
    layers = _stages_probe.Layers(made, 0, torch.device("cpu"))
    example = (torch.zeros(1, 2), torch.zeros(1, 2))
    return _stages_probe.look(
        layers, example, nn.functional.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), True
    )


@pytest.mark.parametrize("period_s", [PERIOD_S, 0.005])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("layers_s", [[3e-4] * 4, [2e-3, 1e-3, 5e-3], [3e-2] * 3, [0.2] * 2])
def test_a_quota_makes_slow(
    monkeypatch: pytest.MonkeyPatch, period_s: float, share: float, layers_s: list[float]
) -> None:
    found = timed(monkeypatch, Machine(share, period_s), layers_s)
    for number, seconds in enumerate(layers_s):
        forward, backward = found.forward_ns[number], found.backward_ns[number]
        assert forward + backward == pytest.approx(3e9 * seconds / share, rel=0.15)
        assert forward == pytest.approx(1e9 * seconds / share, rel=0.35)


def test_a_model_of_many_layers_takes_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for too short to tell; together they are right."""
    machine = Machine(0.25, PERIOD_S)
    found = timed(monkeypatch, machine, [5e-4] * 200)
    assert machine.now < 45
    whole = sum(found.forward_ns) + sum(found.backward_ns)
    assert whole == pytest.approx(200 * 1.5e6 / 0.25, rel=0.1)


def test_a_calm_machine_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1.0, PERIOD_S)
    found = timed(monkeypatch, machine, [1e-3] * 10)
    assert machine.now < 10 * 0.17
    assert found.forward_ns == pytest.approx([1e6] * 10)


def test_one_accident_does_not_count() -> None:
    """But several do."""
    calm = [(1e-3, 2e-3)] * 50
    assert _stages_passes.mean([*calm, (0.08, 2e-3), *calm], 0.75) == pytest.approx((1e-3, 2e-3))
    assert sum(_stages_passes.mean([*calm, (0.08, 2e-3)] * 3, 0.75)) > 4e-3
