# SPDX-License-Identifier: Apache-2.0
"""A DDP script whose ranks have different numbers of batches; knows nothing of msdu."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}

dist.init_process_group("gloo")
torch.manual_seed(1)
net = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.Generator().manual_seed(7)
for _ in range(3):
    with net.join():
        for _ in range(5 + 4 * dist.get_rank()):
            optimizer.zero_grad()
            net(torch.randn(6, 4, generator=data)).square().mean().backward()
            optimizer.step()
RESULT["net"] = net
dist.destroy_process_group()
