# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning with a frozen backbone that is thawed for the second half: wrapped anew then; knows
nothing of msdu. Argument: ``static`` for a static graph."""

import sys

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}

dist.init_process_group("gloo")
torch.manual_seed(4)
backbone = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12))
net = nn.Sequential(backbone, nn.BatchNorm1d(12), nn.Linear(12, 3))
data = torch.Generator().manual_seed(4 + dist.get_rank())
losses = []
for phase in range(2):
    backbone.requires_grad_(phase == 1)
    model = DDP(net, static_graph="static" in sys.argv)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    for _ in range(5):
        x, y = torch.randn(7, 6, generator=data), torch.randint(3, (7,), generator=data)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
