# SPDX-License-Identifier: Apache-2.0
"""Two backward passes after one forward pass, through different parts; knows nothing of msdu.
Argument ``again``: the second one through parts of the first, which DDP refuses."""

import sys

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.left(x), self.right(x)


dist.init_process_group("gloo")
torch.manual_seed(8)
net = Towers()
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(8 + dist.get_rank())
losses = []
for _ in range(5):
    optimizer.zero_grad()
    left, right = model(torch.randn(6, 4, generator=data))
    first, second = left.square().mean(), right.square().mean()
    if "again" in sys.argv:
        second = second + first
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
    losses.append((first.item(), second.item()))
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
