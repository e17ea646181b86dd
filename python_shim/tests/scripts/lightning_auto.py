# SPDX-License-Identifier: Apache-2.0
"""Automatic optimization as Lightning does it; knows nothing of msdu."""

import torch
import torch.distributed as dist
from digest import digest
from lightning_like import Module, Strategy, fit_automatic, start
from torch import nn

RESULT = {}


class Autoencoder(Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.decoder = nn.Linear(8, 12)

    def training_step(self, batch):
        return nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)


rank, data = start(3)
module = Autoencoder()
strategy = Strategy(module)
optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
module.eval()  # the sanity check before the first epoch
with torch.no_grad():
    module.training_step(torch.randn(4, 12, generator=data))
module.train()
batches = [torch.randn(6, 12, generator=data) for _ in range(8)]
RESULT["losses"] = fit_automatic(strategy, optimizer, scheduler, batches)
RESULT["hash"] = digest(module)
print("hash", RESULT["hash"])
dist.destroy_process_group()
