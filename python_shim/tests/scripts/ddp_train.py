# SPDX-License-Identifier: Apache-2.0
"""A DDP script as a user writes it; knows nothing of msdu. Arguments: what to vary."""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.odd = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x, use_odd=True):
        x = torch.tanh(self.first(x))
        if use_odd:
            x = x + self.odd(x)
        return self.last(x)


def optimizer_of(net, kind):
    if kind == "adamw":
        return torch.optim.AdamW(net.parameters(), lr=0.01)
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def main(what):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = Net()
    net = DDP(
        net,
        find_unused_parameters="unused" in what,
        gradient_as_bucket_view="view" in what,
        static_graph="static" in what,
    )
    optimizer = optimizer_of(net, "adamw" if "adamw" in what else "sgd")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.5)
    batches = torch.Generator().manual_seed(5)
    x = torch.randn(16 * ranks, 16, 8, generator=batches)[rank::ranks]
    y = (x @ torch.randn(8, 3, generator=batches)).argmax(2)
    micro = 2 if "accumulate" in what else 1
    losses = []
    for _ in range(3):
        net.train("eval" not in what)
        for step in range(0, 16, micro):
            optimizer.zero_grad()
            for i in range(micro):
                is_last = i == micro - 1
                use_odd = "unused" not in what or (step + rank) % 3 > 0
                with nullcontext() if is_last else net.no_sync():
                    with torch.autocast("cpu", torch.bfloat16, enabled="amp" in what):
                        out = net(x[step + i], use_odd)
                        loss = nn.functional.cross_entropy(out.float(), y[step + i])
                    (loss / micro).backward()
            if "clip" in what:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / ranks)
        net.eval()
        with torch.no_grad():
            net(x[0])
    RESULT["losses"] = losses
    RESULT["net"] = net
    RESULT["last"] = net.module.last.weight.detach().clone()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
