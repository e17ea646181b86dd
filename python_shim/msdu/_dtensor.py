# SPDX-License-Identifier: Apache-2.0
"""Tensors that torch distributes over other ranks (DTensor), of which this rank holds a part.

Ranks that hold the same part of different replicas synchronize it. Which ranks these are is the
process group of an attachment; torch must not do the same over any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Optional

import torch
import torch.distributed as dist

from . import _abi

FORM = (
    "fully_shard(model, mesh=mesh['shard']) and msdu.attach(model, optimizer, "
    "mesh=mesh['replicate'])"
)


def is_part(tensor: Any) -> bool:
    """Does this rank hold a part of it only?"""
    return hasattr(tensor, "device_mesh")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies in this rank's memory; a collective that makes it is waited for."""
    if not is_part(tensor):
        return tensor
    part: Any = tensor._local_tensor  # type: ignore[attr-defined]
    return part.wait() if hasattr(part, "wait") else part  # type: ignore[no-any-return]


def like(part: torch.Tensor, whole: Any) -> torch.Tensor:
    """A tensor with this part of this rank, distributed as ``whole``."""
    return type(whole.data).from_local(  # type: ignore[no-any-return]
        part, whole.device_mesh, whole.placements, shape=whole.shape, stride=whole.stride()
    )


def place(tensor: Any) -> str:
    """Which part this is, in which ranks of a group must not differ; empty for a whole tensor."""
    if not is_part(tensor):
        return ""
    kinds = ", ".join(str(kind) for kind in tensor.placements)
    return f" part {tensor.device_mesh.get_coordinate()} of {tuple(tensor.shape)} ({kinds})"


def is_whole_of(now: Any, param: Any) -> bool:
    """Is this what fully_shard puts in the place of a part, gathered?"""
    return is_part(param) and not (is_part(now) and now.device_mesh == param.device_mesh)


def align(param: torch.Tensor) -> None:
    """A gradient that torch left in another form than its parameter (a sum that is due): in its."""
    grad: Any = param.grad
    if grad is not None and grad.placements != param.placements:  # type: ignore[attr-defined]
        param.grad = grad.redistribute(placements=param.placements)  # type: ignore[attr-defined]


def reshard(model: torch.nn.Module) -> None:
    """Modules of fully_shard show their own parts again, not whole copies of a forward before."""
    for module in model.modules():
        if reads_ahead(module):
            module.reshard()  # type: ignore[operator]


def reads_ahead(module: torch.nn.Module) -> bool:
    """A module of fully_shard: it reads parameters of its submodules before their forward."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def group_of(mesh: Optional[Any], process_group: Optional[Any]) -> Optional[Any]:
    """The process group that a caller means.

    Raises:
        msdu.Error: both are given, or a mesh of several dimensions.
    """
    if mesh is None:
        return process_group
    if process_group is not None:
        raise _abi.Error(_abi.ERR_INVALID, "mesh and process_group say the same: give one")
    if mesh.ndim != 1:
        raise _abi.Error(
            _abi.ERR_INVALID,
            f"mesh has {mesh.ndim} dimensions; give the one over which replicas lie, such as "
            "mesh['replicate']",
        )
    return mesh.get_group()


def check(
    named: Iterable[tuple[str, Any]], process_group: Optional[Any], settings: Mapping[str, Any]
) -> None:
    """May these be synchronized over the group: does each rank hold the same part, and torch
    nothing over them?

    Args:
        named: parameters and buffers, some of them parts.
        process_group: of torch.distributed; None: the default group.
        settings: of the caller.

    Raises:
        msdu.Error: MSDU_ERR_UNSUPPORTED, with the form that works.
    """
    parts = [(name, tensor) for name, tensor in named if is_part(tensor)]
    if process_group is None and "ranks" in settings:
        raise _abi.Error(
            _abi.ERR_INVALID,
            f"parameter '{parts[0][0]}' is sharded: say which ranks hold the same part by mesh or "
            "process_group, not by ranks",
        )
    ranks = dist.get_process_group_ranks(process_group)
    for name, tensor in parts:
        _check_one(name, tensor, ranks)


def _check_one(name: str, tensor: Any, ranks: list[int]) -> None:
    mesh = tensor.device_mesh
    there = [rank for rank in ranks if rank != dist.get_rank() and (mesh.mesh == rank).any()]
    if not there:
        return
    mine = mesh.get_coordinate()
    at = (mesh.mesh == there[0]).nonzero()[0].tolist()
    between = [kind for kind, a, b in zip(tensor.placements, mine, at) if a != b]
    shown = ", ".join(map(str, there))
    if all(kind.is_replicate() for kind in between):
        text = f"is kept equal by torch on this rank and rank {shown}, which would reduce twice"
    else:
        text = f"has another part on rank {shown}, which is in the same group"
    raise _abi.Error(
        _abi.ERR_UNSUPPORTED,
        f"parameter '{name}' is sharded over a device mesh and {text}: let torch shard inside a "
        f"replica only, {FORM}",
    )
