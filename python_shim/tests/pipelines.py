# SPDX-License-Identifier: Apache-2.0
"""Models as chains of layers, plans by hand, and one process that does what a pipeline does."""

from __future__ import annotations

import random
from typing import Any, Callable

import nets
import pytest
import torch
from torch import nn

import msdu
from msdu import _stages_engine, _stages_plan

try:
    _stages_engine.runtime()
except msdu.Error as problem:
    pytest.skip(str(problem), allow_module_level=True)

MICRO = 3  # samples of a micro-batch
WORDS, WIDTH, LENGTH = 11, 8, 5

Factories = list[Callable[[], nn.Module]]


class Attend(nn.Module):
    """A transformer's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(x)


def mlp() -> Factories:
    """Six layers; the first and others have no parameters."""
    return [
        nn.Flatten,
        lambda: nn.Linear(nets.FEATURES, 9),
        nn.Tanh,
        lambda: nn.Linear(9, 7),
        nn.ReLU,
        lambda: nn.Linear(7, nets.CLASSES),
    ]


def transformer() -> Factories:
    """Embedding, four blocks, head."""
    return [
        lambda: nn.Embedding(WORDS, WIDTH),
        *[Attend] * 4,
        lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)),
    ]


class Turn(nn.Module):
    """Gives what is not contiguous."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def odd() -> Factories:
    """Six layers: one writes over its input, others only look at it in another way."""
    return [
        lambda: nn.Linear(nets.FEATURES, 8),
        lambda: nn.ReLU(inplace=True),
        lambda: nn.Unflatten(1, (2, 4)),
        Turn,
        nn.Flatten,
        lambda: nn.Linear(8, nets.CLASSES),
    ]


MODELS = {"mlp": mlp, "odd": odd, "transformer": transformer}


def loss(made: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, over words, too."""
    return nn.functional.cross_entropy(made.flatten(0, -2), y.flatten())


def batch(model: str, step: int, micro_batches: int, replica: int = 0) -> Any:
    """Inputs and targets of a step."""
    count = MICRO * micro_batches
    if model != "transformer":
        return nets.batch(replica, step, count=count)
    made = torch.Generator().manual_seed(1000 * replica + step)
    words = torch.randint(WORDS, (count, LENGTH + 1), generator=made)
    return words[:, :-1], words[:, 1:]


def plan(seed: int, layers: int, devices: int, micro_batches: int) -> bytes:
    """Some cut, some devices, some order that can be run, of one to three stages a device."""
    draw = random.Random(seed)
    count = draw.randint(2, min(layers, 3 * devices))
    places = [draw.randrange(devices) for _ in range(count)]
    ends = [*sorted(draw.sample(range(1, layers), count - 1)), layers]
    cuts = list(zip(places, [0, *ends[:-1]], ends))
    orders: dict[int, list[str]] = {place: [] for place in sorted(set(places))}
    forward, backward = [0] * count, [0] * count  # of each stage, what is done
    while backward[0] < micro_batches:
        may = [
            (stage, "F")
            for stage in range(count)
            if forward[stage] < (forward[stage - 1] if stage else micro_batches)
        ] + [
            (stage, "B")
            for stage in range(count)
            if backward[stage] < (backward[stage + 1] if stage + 1 < count else forward[stage])
        ]
        stage, kind = draw.choice(may)
        done = forward if kind == "F" else backward
        orders[places[stage]].append(f"{stage}{kind}{done[stage]}")
        done[stage] += 1
    return _stages_plan.by_hand(cuts, orders, micro_batches).dumps()


def whole(model: str, seed: int = 0) -> nn.Sequential:
    """All layers in one process, as msdu.pipeline() builds them."""
    layers = []
    for number, make in enumerate(MODELS[model]()):
        torch.manual_seed(seed + number)
        layers.append(make())
    return nn.Sequential(*layers)


def alone(
    model: str, optimizer: str, steps: range, micro_batches: int, replicas: int = 1, clip: float = 0
) -> tuple[nn.Sequential, list[float]]:
    """One process that accumulates the same micro-batches: the model, and the losses."""
    torch.set_num_threads(1)  # as in the ranks; sums are in another order otherwise
    net = whole(model)
    own = nets.OPTIMIZERS[optimizer](net.parameters())
    losses = []
    for step in steps:
        sums: list[list[torch.Tensor]] = []
        for replica in range(replicas):
            own.zero_grad()
            total = torch.zeros(())
            x, y = batch(model, step, micro_batches, replica)
            for part, target in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
                one = loss(net(part), target) / micro_batches
                one.backward()
                total += one.detach()
            sums.append([p.grad.clone() for p in net.parameters()])
            losses.append(float(total))
        for p, *grads in zip(net.parameters(), *sums):
            p.grad = torch.stack(grads).sum(0) / replicas if replicas > 1 else grads[0]
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        own.step()
    return net, losses


def make(model: str, optimizer: str, micro_batches: int, **options: Any) -> msdu.Pipeline:
    """A pipeline of one of MODELS."""
    x, y = batch(model, 0, 1)
    return msdu.pipeline(
        MODELS[model](), loss, nets.OPTIMIZERS[optimizer], (x, y), micro_batches, **options
    )


def values(pipe: msdu.Pipeline) -> dict[str, torch.Tensor]:
    """Parameters of this rank's layers, by name in the whole model."""
    return {
        f"{number}.{name}": param.detach().clone()
        for number, module in pipe.modules.items()
        for name, param in module.named_parameters()
    }


def same(found: list[dict[str, torch.Tensor]], net: nn.Module) -> None:
    """Assert that all ranks together have the net's parameters, to the bit."""
    together = {name: value for one in found for name, value in one.items()}
    wanted = dict(net.named_parameters())
    assert set(together) == set(wanted)
    for name, value in together.items():
        assert torch.equal(value, wanted[name]), name
