# SPDX-License-Identifier: Apache-2.0
"""Scripts that nothing can be attached to, by argument; knows nothing of msdu."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


def wrapped(net, what):
    """The model and what the optimizer gets."""
    if what.startswith("fsdp"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(
            net, use_orig_params=what == "fsdp_orig", device_id=torch.device("cpu")
        )
    if what in ("fully_shard", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shape, names = ((2, 1), ("replicate", "shard")) if what == "hsdp" else ((2,), ("shard",))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        return fully_shard(net, mesh=mesh)
    return DDP(net) if what in ("no_sync", "flag", "by_hand") else net


def main(what):
    if what != "alone":
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = wrapped(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), what)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if what == "by_hand":
        del optimizer
    if what == "flag":
        model.require_backward_grad_sync = False
    losses = []
    for _ in range(3):
        model.zero_grad()
        if what == "no_sync":
            with model.no_sync():
                loss = model(torch.ones(3, 4)).square().mean()
                loss.backward()
        else:
            loss = model(torch.ones(3, 4)).square().mean()
            loss.backward()
        if what == "by_hand":
            with torch.no_grad():
                for param in model.parameters():
                    param -= 0.1 * param.grad
        else:
            optimizer.step()
        losses.append(loss.item())
    RESULT["losses"] = losses


main(sys.argv[1])
