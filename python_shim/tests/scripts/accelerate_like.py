# SPDX-License-Identifier: Apache-2.0
"""What accelerate does around a wrapped model; knows nothing of msdu.

Arguments: ``accumulate`` (a frozen backbone whose BatchNorm trains on, micro-batches by no_sync()),
``trigger`` (a reduction that is asked for after forwards inside no_sync()), ``local_sgd`` (passes
inside no_sync() for ever, parameters averaged by hand).
"""

import sys
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


@contextmanager
def trigger_sync_in_backward(model):
    before = model.require_backward_grad_sync, model.require_forward_param_sync
    model.require_backward_grad_sync = model.require_forward_param_sync = True
    model.reducer.prepare_for_backward([])
    try:
        yield
    finally:
        model.require_backward_grad_sync, model.require_forward_param_sync = before


def average(model):
    for param in model.parameters():
        value = param.data.clone()
        dist.all_reduce(value)
        param.data = value.mul_(1 / dist.get_world_size())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.head(self.backbone(x))


what = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(42)
net = Net()
if what == "accumulate":
    net.backbone.requires_grad_(False)
model = DDP(net)
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=7)
data = torch.Generator().manual_seed(42 + rank)
losses = []
for epoch in range(2):
    model.train()
    for step in range(7):
        x, y = torch.randn(6, 3, 8, 8, generator=data), torch.randint(3, (6,), generator=data)
        is_sync = step % 2 == 1 or step == 6
        is_plain = is_sync and (what == "accumulate" or (what == "trigger" and step == 6))
        with nullcontext() if is_plain else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), y) / 2
            if is_sync and not is_plain and what == "trigger":
                with trigger_sync_in_backward(model):
                    loss.backward()
            else:
                loss.backward()
        losses.append(loss.item())
        if is_sync:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if epoch == 0 and what != "local_sgd":
                scheduler.step()
            optimizer.zero_grad()
            if what == "local_sgd" and step % 3 == 0:
                average(model)
    model.eval()
    with torch.no_grad():  # every rank evaluates, through the wrapper
        hits = (model(x).argmax(1) == y).sum()
    dist.all_reduce(hits)
    losses.append(hits.item())
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
