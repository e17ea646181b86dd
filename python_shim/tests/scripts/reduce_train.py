# SPDX-License-Identifier: Apache-2.0
"""A script that averages gradients by hand; knows nothing of msdu. Argument: how it does it."""

import sys

import torch
import torch.distributed as dist
from torch import nn

RESULT = {}


def average(net, how, ranks):
    if how == "flat":
        grads = [p.grad for p in net.parameters()]
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat /= ranks
        for grad, mean in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads)):
            grad.copy_(mean)
        return
    for p in net.parameters():
        if how == "before":
            p.grad.div_(ranks)
            dist.all_reduce(p.grad)
        elif how == "clamp":
            if dist.get_rank() > 0 or p.grad.norm() > 1000:  # which a rank may never see
                p.grad.data.clamp_(-0.05, 0.05)
            dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM)
            p.grad.data /= ranks
        else:
            work = dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM, async_op=how == "async")
            if work is not None:
                work.wait()
            p.grad.data /= ranks


def main(how):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    if how == "hooks":

        def reduce_early(p):
            dist.all_reduce(p.grad)
            p.grad /= ranks

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(reduce_early)
    if how == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(5)
    x = torch.randn(24, ranks, 16, 8, generator=data)[:, rank]
    y = (x @ torch.randn(8, 3, generator=data)).argmax(2)
    losses = []
    for step in range(24):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[step]), y[step])
        loss.backward()
        if how != "hooks":
            average(net, how, ranks)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        size = torch.tensor([len(y[step])])
        dist.all_reduce(size)
        assert size.item() == ranks * 16
        losses.append(mean.item() / ranks)
    RESULT["losses"] = losses
    RESULT["last"] = net[4].weight.detach().clone()
    RESULT["net"] = net
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
