# SPDX-License-Identifier: Apache-2.0
"""Adam's second moments in local steps: led to those of the mean gradient."""

from __future__ import annotations

import copy

import nets
import pytest
import ranks
import torch
from test_parity import LOCAL
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

import msdu
from msdu import _moments


def led_reference(rank: int, size: int, steps: int) -> torch.Tensor:
    """Adam in plain torch with second moments led to the mean gradient's; averaged every step."""
    model = nets.mlp(torch.float64)
    params = list(model.parameters())
    first = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params]
    memory = 1 - 0.05 / size
    used = 1 - (1 - memory) / size
    for step in range(1, steps + 1):
        model.zero_grad()
        nets.loss_of(model, *nets.batch(rank, step - 1, torch.float64)).backward()
        for p, m, v in zip(params, first, second):
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            v.mul_(used).addcmul_(p.grad, p.grad, value=1 - used)
            few = 1 - used**step
            with torch.no_grad():
                p -= 0.01 * m / (1 - 0.9**step) / ((v / few).sqrt() + 1e-8)
            v.mul_(memory / used).addcmul_(m, m, value=(1 - memory) * (1 - 1 / size) * few)
        PeriodicModelAverager(period=1).average_parameters(params)
    return nets.flat(model)


def against_led_moments() -> tuple[torch.Tensor, torch.Tensor, list[tuple[float, ...]]]:
    rank, size = ranks.join_torch()
    wanted = led_reference(rank, size, 6)
    model = nets.mlp(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    seen = []
    with msdu.attach(model, optimizer, **{**LOCAL, "second_moments": "mean"}, interval_steps=1):
        for step in range(6):
            nets.train(model, optimizer, range(step, step + 1), rank, torch.float64)
            seen.append(optimizer.state_dict()["param_groups"][0]["betas"])
    return nets.flat(model), wanted, seen


def test_second_moments_of_local_steps_are_led_to_those_of_the_mean_gradient() -> None:
    for ours, theirs, seen in ranks.run(against_led_moments, ranks=3):
        nets.close_to(ours, theirs, 1e-12)
        assert set(seen) == {(0.9, 0.95)}


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam])
@pytest.mark.parametrize("signal, noise", [(0.0, 2.0), (1.0, 0.0), (1.0, 2.0)])
def test_second_moments_come_to_those_of_the_mean_gradient(
    signal: float, noise: float, kind: type[torch.optim.Optimizer]
) -> None:
    """signal^2 + noise^2 / 4 of four ranks, and what noise is in the first moment's square."""
    generator = torch.Generator().manual_seed(1)
    parameter = nn.Parameter(torch.zeros(2000))
    idle = nn.Parameter(torch.zeros(2000))  # has no gradient any more
    optimizer = kind([parameter, idle], lr=1e-9, betas=(0.9, 0.95))  # type: ignore[call-arg]
    moments = _moments.SecondMoments([optimizer], "mean")
    moments.ranks = 4
    for step in range(1600):
        parameter.grad = signal + noise * torch.randn(2000, generator=generator)
        idle.grad = parameter.grad if step == 0 else None
        moments.before(optimizer)
        optimizer.step()
        moments.after()
        if step == 0:
            first = optimizer.state[idle]["exp_avg_sq"].clone()
    wanted = signal**2 + noise**2 * (1 / 4 + 3 / 4 * 0.1 / 1.9)
    found = float(optimizer.state[parameter]["exp_avg_sq"].mean())
    assert found == pytest.approx(wanted, rel=0.05)
    assert torch.equal(optimizer.state[idle]["exp_avg_sq"], first)


def test_steps_are_counted_as_the_optimizer_does() -> None:
    """On a device its own number would be waited for."""
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.Adam([parameter])
    moments = _moments.SecondMoments([optimizer], "mean")
    moments.ranks = 4

    def step() -> float:
        moments.before(optimizer)
        optimizer.step()
        moments.after()
        (steps,) = (steps for _, steps in moments._steps.values())
        return steps

    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    assert [step(), step(), step()] == [2, 3, 4]
    optimizer.load_state_dict(saved)
    moments._steps = {id(optimizer.param_groups[0]): one for one in moments._steps.values()}
    assert [step(), step()] == [2, 3]  # even if the new group has the old one's address


def test_the_optimizer_has_its_own_beta2_after_a_step_that_failed() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], betas=(0.9, 0.95))
    moments = _moments.SecondMoments([optimizer], "mean")
    moments.ranks = 4
    moments.before(optimizer)
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.9, 0.996875))
    moments.before(optimizer)  # no step came to its end
    assert optimizer.param_groups[0]["betas"] == pytest.approx((0.9, 0.996875))
    moments.restore()
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)


@pytest.mark.parametrize("beta2, wanted", [(0.99, 0.9975), (0.999, 0.9995), (0.9999, 0.9999)])
def test_beta2_is_scaled_within_a_limit(beta2: float, wanted: float) -> None:
    assert _moments.scaled(beta2, 4) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "word, text", [("kept", "'kept' is not one of mean, own"), ("keep", "'keep' is gone since 0.3")]
)
def test_another_word_is_refused(word: str, text: str) -> None:
    model = nets.mlp()
    with pytest.raises(msdu.Error, match=text):
        msdu.attach(model, torch.optim.Adam(model.parameters()), second_moments=word)
