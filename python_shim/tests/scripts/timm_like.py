# SPDX-License-Identifier: Apache-2.0
"""An image classifier with an average of the weights, in timm's way; knows nothing of msdu."""

from copy import deepcopy

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


class ModelEma(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.module = deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        pairs = zip(self.module.state_dict().values(), model.state_dict().values())
        for ours, theirs in pairs:
            ours.copy_(self.decay * ours + (1.0 - self.decay) * theirs)


class Separable(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.depth = nn.Conv2d(inside, inside, 3, padding=1, groups=inside, bias=False)
        self.bn1 = nn.BatchNorm2d(inside)
        self.point = nn.Conv2d(inside, outside, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)

    def forward(self, x):
        return torch.relu(self.bn2(self.point(torch.relu(self.bn1(self.depth(x))))))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(42)
net = nn.Sequential(
    nn.Conv2d(3, 6, 3, 2, bias=False),
    nn.BatchNorm2d(6),
    nn.ReLU(),
    Separable(6, 8),
    Separable(8, 8),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 5),
)
net = net.to(memory_format=torch.channels_last)
ema = ModelEma(net, 0.9)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
model = DDP(net, gradient_as_bucket_view=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
data = torch.Generator().manual_seed(42 + rank)
losses = []
for _ in range(8):
    x = torch.randn(6, 3, 16, 16, generator=data).contiguous(memory_format=torch.channels_last)
    y = torch.randint(5, (6,), generator=data)
    loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.3)
    optimizer.step()
    ema.update(model.module)
    scheduler.step()
    losses.append(loss.item())
RESULT["losses"] = losses
RESULT["hash"] = digest(net, ema.module)
print("hash", RESULT["hash"])
dist.destroy_process_group()
