# SPDX-License-Identifier: Apache-2.0
"""Four ranks as two replicas of two shards: models, their training, and what torch makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import nets
import ranks
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from test_parity import meets
from torch import nn

STEPS = range(12)
ROWS = 3  # of the narrow layer: two for one shard, one for the other


def mesh_of(replicas: int = 2, shards: int = 2) -> Any:
    """Dimensions "replicate" and "shard"; joins torch.distributed."""
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        ranks.join_torch()
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def net(dtype: torch.dtype = torch.float32, seed: int = 1) -> nn.Module:
    """No layer divides by two, one has a single row; the same values for a seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(nets.FEATURES, 33),
        nn.Tanh(),
        nn.Linear(33, 1),
        nn.Tanh(),
        nn.Linear(1, ROWS, bias=False),
        nn.Linear(ROWS, nets.CLASSES),
    ).to(dtype)


def shard(model: nn.Module, mesh: Any, **options: Any) -> Any:
    """By fully_shard, layer by layer, as its users do it."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def parts(model: nn.Module) -> torch.Tensor:
    """This rank's parts of all parameters in one vector, a copy, float64."""
    found = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
    return torch.cat([part.double().reshape(-1) for part in found])


def average(model: nn.Module, group: Any) -> None:
    """Parameters by torch, over the replicas."""
    for p in model.parameters():
        part = getattr(p, "_local_tensor", p).detach()
        dist.all_reduce(part, group=group)
        part /= dist.get_world_size(group)


def train_by_torch(
    mesh: Any, name: str, interval: int, dtype: torch.dtype = torch.float32, **options: Any
) -> nn.Module:
    """HSDP for an interval of 1, else averages of parameters."""
    model = shard(net(dtype), mesh if interval == 1 else mesh["shard"], **options)
    optimizer = OPTIMIZERS[name](model.parameters())
    for step in STEPS:
        nets.train(model, optimizer, range(step, step + 1), dist.get_rank(), dtype)
        if interval > 1 and (meets(step, interval) or step == STEPS[-1]):
            average(model, mesh.get_group("replicate"))
    return model


def gathered(values: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """The same of all ranks of a group."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, values, group=group)
    return found


def are_equal(values: torch.Tensor, group: Any) -> bool:
    """On all ranks of a group, to the bit."""
    return all(torch.equal(values, other) for other in gathered(values, group))


def clipped(model: nn.Module, optimizer: Any, steps: Iterable[int]) -> list[float]:
    """A loop that clips; the norms."""
    norms = []
    for step in steps:
        optimizer.zero_grad()
        nets.loss_of(model, *nets.batch(dist.get_rank(), step)).backward()
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
    return norms
