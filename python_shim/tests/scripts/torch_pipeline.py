# SPDX-License-Identifier: Apache-2.0
"""torch's own pipeline of two stages; knows nothing of msdu. Argument: ``ddp`` for replicas of it,
each stage in DistributedDataParallel."""

import sys

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}
STAGES, MICRO_BATCHES = 2, 4

dist.init_process_group("gloo")
shape = (dist.get_world_size() // STAGES, STAGES)
mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "stage"))
number = mesh.get_local_rank("stage")
torch.manual_seed(number)
net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
module = DDP(net, process_group=mesh.get_group("replica")) if "ddp" in sys.argv else net
stage = PipelineStage(module, number, STAGES, torch.device("cpu"), group=mesh.get_group("stage"))
schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
data = torch.Generator().manual_seed(mesh.get_local_rank("replica"))
RESULT["losses"] = []
for _ in range(5):
    x, y = torch.randn(2, 2 * MICRO_BATCHES, 6, generator=data)
    optimizer.zero_grad()
    losses = []
    if number == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
    optimizer.step()
    RESULT["losses"] += [one.item() for one in losses]
RESULT["hash"] = digest(net)
dist.destroy_process_group()
