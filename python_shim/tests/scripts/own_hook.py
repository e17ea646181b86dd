# SPDX-License-Identifier: Apache-2.0
"""A DDP script with a communication hook of its own; knows nothing of msdu."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}

dist.init_process_group("gloo")
torch.manual_seed(1)
net = DDP(torch.nn.Linear(4, 2))
net.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
RESULT["losses"] = []
for step in range(4):
    optimizer.zero_grad()
    loss = net(torch.full((3, 4), 0.1 * step + dist.get_rank())).square().mean()
    loss.backward()
    optimizer.step()
    RESULT["losses"].append(loss.item())
dist.destroy_process_group()
