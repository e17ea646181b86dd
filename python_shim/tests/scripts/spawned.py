# SPDX-License-Identifier: Apache-2.0
"""A DDP script that starts its ranks by itself, as the tutorial does; knows nothing of msdu."""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, ranks, port, folder):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    net = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        net(torch.full((3, 4), 0.1 * step + rank)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        torch.save(net.state_dict(), os.path.join(folder, "net.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    mp.spawn(train, args=(2, free, sys.argv[1]), nprocs=2)
