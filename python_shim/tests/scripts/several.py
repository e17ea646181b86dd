# SPDX-License-Identifier: Apache-2.0
"""Two wrapped models under one optimizer that are not reduced by the same passes; knows nothing of
msdu."""

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}

dist.init_process_group("gloo")
torch.manual_seed(6)
body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh())
head = nn.Linear(8, 2)
first, second = DDP(body), DDP(head, broadcast_buffers=False)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=0.02)
data = torch.Generator().manual_seed(6 + dist.get_rank())
losses = []
for step in range(8):
    optimizer.zero_grad()
    x, y = torch.randn(6, 5, generator=data), torch.randint(2, (6,), generator=data)
    if step % 2:
        with second.no_sync():  # a pass that only the first one reduces
            nn.functional.cross_entropy(second(first(x)), y).backward()
    first(x).square().mean().backward()  # which the second one does not take part in
    hidden = body(x).detach()  # past its wrapper
    loss = nn.functional.cross_entropy(second(hidden), y)
    loss.backward()
    head(hidden.flip(0)).square().mean().backward()  # past its wrapper: nobody reduces this
    optimizer.step()
    losses.append(loss.item())
RESULT["losses"] = losses
RESULT["hash"] = digest(body, head)
print("hash", RESULT["hash"])
dist.destroy_process_group()
