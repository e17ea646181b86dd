# SPDX-License-Identifier: Apache-2.0
"""A DDP script that evaluates on every rank after each epoch; knows nothing of msdu."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {"weights": []}

dist.init_process_group("gloo")
torch.manual_seed(1)
net = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.Generator().manual_seed(7 + dist.get_rank())
for _ in range(2):
    net.train()
    for _ in range(10):
        optimizer.zero_grad()
        net(torch.randn(6, 4, generator=data)).square().mean().backward()
        optimizer.step()
    net.eval()
    RESULT["weights"].append([t.clone() for t in net.state_dict().values() if t.dim()])
dist.destroy_process_group()
