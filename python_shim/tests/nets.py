# SPDX-License-Identifier: Apache-2.0
"""Small models and data that depend on rank and step, and how they are trained."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch._dynamo  # DDP and optimizers load it at their first use: once, before the fork
from torch import nn

FEATURES, CLASSES, BATCH = 12, 5, 8


def mlp(dtype: torch.dtype = torch.float32, seed: int = 1) -> nn.Module:
    """Two hidden layers; the same values for a seed on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 33), nn.Tanh(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, CLASSES)
    ).to(dtype)


def batch(
    rank: int, step: int, dtype: torch.dtype = torch.float32, count: int = BATCH
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (count, FEATURES) and classes (count,)."""
    made = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(count, FEATURES, generator=made, dtype=torch.float64).to(dtype)
    return x, torch.randint(CLASSES, (count,), generator=made)


def image_batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (BATCH, 3, 8, 8) and classes."""
    made = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(BATCH, 3, 8, 8, generator=made)
    return x, torch.randint(CLASSES, (BATCH,), generator=made)


def convnet(seed: int = 1) -> nn.Module:
    """A convolution with BatchNorm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
    )


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy."""
    return nn.functional.cross_entropy(model(x), y)


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in one vector, a copy, float64."""
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    rank: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """A plain loop."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, *batch(rank, step, dtype)).backward()
        optimizer.step()


def close_to(a: torch.Tensor, b: torch.Tensor, limit: float) -> None:
    """Assert that two vectors are equal up to a limit relative to the largest value."""
    difference = float((a - b).abs().max() / b.abs().max())
    assert difference <= limit, f"relative difference {difference:.3g}, allowed {limit:.3g}"
