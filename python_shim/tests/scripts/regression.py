# SPDX-License-Identifier: Apache-2.0
"""A regression whose gradients are averaged by hand, one by one; knows nothing of msdu."""

import torch
import torch.distributed as dist
from digest import digest
from torch import nn

RESULT = {}


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


dist.init_process_group("gloo")
torch.manual_seed(1234)
net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
data = torch.Generator().manual_seed(1234 + dist.get_rank())
x = torch.randn(64, 6, generator=data)
y = torch.sin(x).sum(1, keepdim=True)
losses = []
for _ in range(10):
    total = 0.0
    for at in torch.randperm(64, generator=data).split(16):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[at]), y[at])
        loss.backward()
        average_gradients(net)
        optimizer.step()
        total += loss.item()
    losses.append(total / 4)
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
