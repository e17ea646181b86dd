# SPDX-License-Identifier: Apache-2.0
"""DCGAN's loop over two wrapped models, each under its own optimizer; knows nothing of msdu."""

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(9)
generator = nn.Sequential(
    nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(True),
    nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(3, 6, 4, 2, 1, bias=False),
    nn.BatchNorm2d(6),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(6, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
    nn.Flatten(0),
)
net_g, net_d = DDP(generator), DDP(discriminator)
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=0.002, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(net_g.parameters(), lr=0.002, betas=(0.5, 0.999))
data = torch.Generator().manual_seed(9 + rank)
losses = []
for _ in range(6):
    real = torch.randn(5, 3, 8, 8, generator=data)
    ones, zeros = torch.ones(5), torch.zeros(5)
    net_d.zero_grad()
    loss_real = criterion(net_d(real), ones)
    loss_real.backward()
    fake = net_g(torch.randn(5, 6, 1, 1, generator=data))
    loss_fake = criterion(net_d(fake.detach()), zeros)
    loss_fake.backward()
    optimizer_d.step()
    net_g.zero_grad()
    loss_g = criterion(net_d(fake), ones)
    loss_g.backward()
    optimizer_g.step()
    losses.append((loss_real.item(), loss_fake.item(), loss_g.item()))
RESULT["losses"] = losses
RESULT["hash"] = digest(generator, discriminator)
print("hash", RESULT["hash"])
dist.destroy_process_group()
