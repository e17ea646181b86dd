# SPDX-License-Identifier: Apache-2.0
"""A GAN by manual optimization as Lightning does it; knows nothing of msdu."""

import torch
import torch.distributed as dist
from digest import digest
from lightning_like import Module, Strategy, start
from torch import nn

RESULT = {}


class GAN(Module):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16, 0.8), nn.LeakyReLU(0.2), nn.Linear(16, 10)
        )
        self.discriminator = nn.Sequential(nn.Linear(10, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))

    def forward(self, z):
        return self.generator(z)

    def adversarial_loss(self, made, y):
        return nn.functional.binary_cross_entropy_with_logits(made, y)

    def training_step(self, real, z):
        optimizer_g, optimizer_d = self.optimizers
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial_loss(self.discriminator(self(z)), ones)
        self.manual_backward(g_loss)
        optimizer_g.step()
        optimizer_g.zero_grad()
        self.untoggle_optimizer()
        self.toggle_optimizer(optimizer_d)
        real_loss = self.adversarial_loss(self.discriminator(real), ones)
        fake_loss = self.adversarial_loss(self.discriminator(self(z).detach()), zeros)
        d_loss = (real_loss + fake_loss) / 2
        self.manual_backward(d_loss)
        optimizer_d.step()
        optimizer_d.zero_grad()
        self.untoggle_optimizer()
        self.losses.append((g_loss.item(), d_loss.item()))


rank, data = start(5)
module = GAN()
strategy = Strategy(module, find_unused_parameters=True)
module.losses = []
module.optimizers = [
    torch.optim.Adam(part.parameters(), lr=0.002, betas=(0.5, 0.999))
    for part in (module.generator, module.discriminator)
]
for _ in range(10):
    real, z = torch.randn(8, 10, generator=data), torch.randn(8, 4, generator=data)
    strategy.training_step(real, z)
RESULT["losses"] = module.losses
RESULT["hash"] = digest(module)
print("hash", RESULT["hash"])
dist.destroy_process_group()
