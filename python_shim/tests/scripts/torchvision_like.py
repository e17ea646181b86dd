# SPDX-License-Identifier: Apache-2.0
"""A residual net with BatchNorm and a warm-up, in the way of torchvision's references; knows
nothing of msdu."""

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
        )

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


def batches(count):
    for _ in range(count):
        yield torch.randn(6, 3, 12, 12, generator=data), torch.randint(4, (6,), generator=data)


def train_one_epoch():
    model.train()
    for image, target in batches(5):
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def evaluate():
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    with torch.inference_mode():
        for image, target in batches(2):
            output = model(image)
            totals += torch.tensor([criterion(output, target).item(), len(target)])
    dist.barrier()
    dist.all_reduce(totals)
    losses.append(totals[0].item())


dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.Generator().manual_seed(dist.get_rank())
net = nn.Sequential(
    Residual(3, 6, 1), Residual(6, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1),
        torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    ],
    milestones=[1],
)
model = DDP(net)
losses = []
for _ in range(3):
    train_one_epoch()
    scheduler.step()
    evaluate()
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
