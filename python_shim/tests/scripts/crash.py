# SPDX-License-Identifier: Apache-2.0
"""A DDP script one of whose ranks dies; knows nothing of msdu. Argument: how."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
net = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(40):
    if dist.get_rank() == 1 and step == 20:
        if sys.argv[1] == "raise":
            raise ValueError("a bug of the script")
        if sys.argv[1] == "exit":
            sys.exit(0)  # this rank believes to be ready
        os.kill(os.getpid(), 9)
    optimizer.zero_grad()
    net(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
