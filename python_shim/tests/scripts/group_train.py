# SPDX-License-Identifier: Apache-2.0
"""Four ranks that train two models, each over a group of its own; knows nothing of msdu."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


def average(net, how, group, other):
    ranks = dist.get_world_size(group)
    grads = [p.grad for p in net.parameters()]
    if how == "flat":
        flat = torch.cat([grad.reshape(-1) for grad in grads]) / ranks
        dist.all_reduce(flat, group=group)
        for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads])):
            grad.copy_(mean.view_as(grad))
    for i, grad in enumerate(grads if how != "flat" else []):
        dist.all_reduce(grad, group=other if how == "two" and i == 0 else group)
        grad /= ranks
        if how == "again":
            dist.all_reduce(grad, group=other)
            grad /= ranks


def main(how):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, other = columns[rank % 2], rows[rank // 2]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    model = DDP(net, process_group=group) if how == "ddp" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(5 + rank % 2)
    x = torch.randn(24, 2, 16, 8, generator=data)[:, rank // 2]
    y = (x @ torch.randn(8, 3, generator=data)).argmax(2)
    losses = []
    for step in range(24):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[step]), y[step])
        loss.backward()
        if how != "ddp":
            average(net, how, group, other)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / 2)
    RESULT["losses"] = losses
    RESULT["last"] = net[4].weight.detach().clone()
    RESULT["net"] = net
    dist.barrier()  # rank 0 serves the store, and the other group may be slower
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
