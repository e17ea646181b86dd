# SPDX-License-Identifier: Apache-2.0
"""Two DDP models under one optimizer and a third under its own; knows nothing of msdu."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
encoder, decoder, critic = DDP(nn.Linear(4, 6)), DDP(nn.Linear(6, 4)), DDP(nn.Linear(4, 1))
scale = nn.Parameter(torch.ones(()))  # not wrapped, so each rank has its own
first = torch.optim.SGD([*encoder.parameters(), *decoder.parameters(), scale], lr=0.05)
second = torch.optim.Adam(critic.parameters(), lr=0.01)
data = torch.Generator().manual_seed(2)
x = torch.randn(10, ranks, 5, 4, generator=data)[:, rank]
losses = []
for step in range(10):
    second.zero_grad()
    made = decoder(torch.tanh(encoder(x[step]))) * scale
    worth = critic(made.detach()).mean() - critic(x[step]).mean()
    worth.backward()
    second.step()
    first.zero_grad()
    loss = (made - x[step]).square().mean() - 0.01 * critic(made).mean()
    loss.backward()
    first.step()
    losses.append((worth.item(), loss.item()))
RESULT["losses"] = losses
RESULT["scale"] = scale.detach().clone()
dist.destroy_process_group()
