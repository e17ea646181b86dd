# SPDX-License-Identifier: Apache-2.0
"""Adam's second moments in local steps: led to those of the mean gradient, or kept."""

from __future__ import annotations

import copy
from typing import Any

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from test_parity import LOCAL
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

import msdu
from msdu import _moments

WARM, INTERVAL, STEPS = 5, 3, 17
EXACT = WARM + 1  # steps on mean gradients: a decision is one round old when it is carried out
KEEP: dict[str, Any] = {"interval": "fixed", "interval_steps": INTERVAL, "warmup_steps": WARM,
                        "overlap": "backward", "wire": "float32", "wire_warmup": "float32",
                        "second_moments": "keep"}  # fmt: skip


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


def kept_reference(rank: int, size: int, decay: float) -> torch.Tensor:
    """AdamW in plain torch: of mean gradients, then of own ones over kept second moments."""
    model = nets.mlp(torch.float64)
    params = list(model.parameters())
    first = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params]
    for step in range(STEPS):
        is_local = step >= EXACT
        if step == EXACT:
            second = [_moments.raised(v / (1 - 0.95**EXACT)) for v in second]
        model.zero_grad()
        nets.loss_of(model, *nets.batch(rank, step, torch.float64)).backward()
        for p, m, v in zip(params, first, second):
            if not is_local:
                dist.all_reduce(p.grad)
                p.grad /= size
                v.mul_(0.95).addcmul_(p.grad, p.grad, value=0.05)
            m.mul_(0.9).add_(p.grad, alpha=0.1)
            root = (v if is_local else v / (1 - 0.95 ** (step + 1))).sqrt()
            unbiased = m if is_local else m / (1 - 0.9 ** (step + 1))
            with torch.no_grad():
                p -= 0.01 * (decay * p + unbiased / (root + 1e-8))
        if (is_local and (step - EXACT + 1) % INTERVAL == 0) or step == STEPS - 1:
            with torch.no_grad():
                for p in params:
                    dist.all_reduce(p)
                    p /= size
    return nets.flat(model)


def kept(decay: float) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any], str]:
    rank, size = ranks.join_torch()
    wanted = kept_reference(rank, size, decay)
    model = nets.mlp(torch.float64)
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=decay)
    with msdu.attach(model, optimizer, **KEEP) as attachment:
        nets.train(model, optimizer, range(STEPS), rank, torch.float64)
        state = optimizer.state_dict()
        domain = attachment.summary().domain
    return nets.flat(model), wanted, state, domain


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_kept_second_moments_are_those_of_the_mean_gradients(decay: float) -> None:
    (first, *_, state, domain), (second, wanted, *_) = ranks.run(kept, decay)
    assert domain == "parameter"
    assert torch.equal(first, second)
    nets.close_to(first, wanted, 1e-3)  # each step still adds 4e-6 of a square
    assert state["param_groups"][0]["betas"] == (0.9, 0.95)
    assert [float(one["step"]) for one in state["state"].values()] == [STEPS] * 6


def formats() -> list[torch.Tensor]:
    rank, _ = ranks.join_torch()
    ends = []
    for wire in (None, "int4", "float32"):
        model = nets.mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        settings = {**KEEP, "wire": "sparse", "wire_warmup": wire}
        with msdu.attach(model, optimizer, **settings):
            nets.train(model, optimizer, range(STEPS), rank)
        ends.append(nets.flat(model))
    return ends


def test_gradients_before_local_steps_travel_in_four_bits() -> None:
    for unsaid, int4, float32 in ranks.run(formats):
        assert torch.equal(unsaid, int4)
        assert not torch.equal(unsaid, float32)


def test_a_root_is_raised_to_a_tenth_of_the_mean_of_its_block() -> None:
    second = torch.full((300,), 4.0).reshape(3, 100)
    second[0, 0] = second[2, 99] = 0.0
    raised = _moments.raised(second)
    assert raised.shape == second.shape
    assert float(raised[0, 0]) == pytest.approx((0.1 * 2 * 255 / 256) ** 2)
    assert float(raised[2, 99]) == pytest.approx((0.1 * 2 * 43 / 44) ** 2)
    assert torch.equal(raised.flatten()[1:-1], second.flatten()[1:-1])
    assert _moments.raised(torch.zeros(0, 3)).shape == (0, 3)


def stepped(**options: Any) -> tuple[torch.optim.Adam, nn.Parameter, _moments.SecondMoments]:
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.95), **options)
    parameter.grad = torch.full((4,), 2.0)
    optimizer.step()
    moments = _moments.SecondMoments([optimizer], "keep")
    moments.ranks = 4
    return optimizer, parameter, moments


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_kept_second_moments_do_not_see_another_gradient(options: dict[str, Any]) -> None:
    optimizer, parameter, moments = stepped(**options)
    for _ in range(3):
        parameter.grad = torch.full((4,), 200.0)
        moments.before(optimizer)
        optimizer.step()
        moments.restore()
    state = optimizer.state[parameter]
    assert float(state["step"]) == 4
    torch.testing.assert_close(state["exp_avg_sq"], torch.full((4,), 4.0), rtol=0.15, atol=0)


def test_a_step_that_failed_or_was_left_out_is_not_counted() -> None:
    optimizer, parameter, moments = stepped()
    moments.before(optimizer)
    moments.before(optimizer)  # no step came to its end
    moments.restore()
    assert float(optimizer.state[parameter]["step"]) == 1
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95)


def test_a_parameter_without_a_gradient_so_far_begins_with_its_own() -> None:
    optimizer, _, moments = stepped()
    late = nn.Parameter(torch.ones(4))
    optimizer.add_param_group({"params": [late]})
    for gradient in (3.0, 4.0):
        late.grad = torch.full((4,), gradient)
        moments.before(optimizer)
        optimizer.step()
        moments.restore()
        moved = 1 - late.detach()
    assert float(optimizer.state[late]["step"]) == 2
    assert 0 < float(moved[0]) < 0.25  # about a learning rate a step


def refused(text: str, optimizer: Any = None, **settings: Any) -> None:
    model = nets.mlp()
    made = optimizer or torch.optim.AdamW(model.parameters())
    with pytest.raises(msdu.Error, match=text) as problem:
        msdu.attach(model, made(model.parameters()) if optimizer else made,
                    second_moments="keep", backend="local", **settings)  # fmt: skip
    assert problem.value.status == "MSDU_ERR_INVALID"


def test_what_cannot_be_kept_is_refused() -> None:
    def amsgrad(params: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, amsgrad=True)

    def sgd(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1)

    refused("set warmup_steps")
    refused("set warmup_steps", warmup_steps=0)
    refused("set warmup_steps", warmup_steps="0")
    refused("Adam and AdamW", sgd, warmup_steps=9)
    refused("without amsgrad", amsgrad, warmup_steps=9)
    refused("domain gradient has no", domain="gradient", warmup_steps=9)
    refused("domain parameter has no", domain="parameter", warmup_steps=9)


def test_another_word_is_refused() -> None:
    model = nets.mlp()
    with pytest.raises(msdu.Error, match="'kept' is not one of mean, keep, own"):
        msdu.attach(model, torch.optim.Adam(model.parameters()), second_moments="kept")
