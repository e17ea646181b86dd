# SPDX-License-Identifier: Apache-2.0
"""A plain DistributedDataParallel script. It knows nothing of libmsdu:

torchrun --nproc-per-node 4 examples/ddp_train.py
torchrun --nproc-per-node 4 -m msdu --interval fixed --interval-steps 8 examples/ddp_train.py
"""

import argparse

import torch
import torch.distributed as dist
from digits import count_correct, load, make_net
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train_epoch(net, batches, optimizer):
    """One pass over this rank's share; the mean loss over all ranks."""
    net.train()
    total = torch.zeros(())
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item() / len(batches) / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's idx files; else scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="a rank")
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = load(args.data)
    sampler = DistributedSampler(train)
    batches = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    net = DDP(make_net())
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(net, batches, optimizer)
        schedule.step()
        if dist.get_rank() == 0:
            right = count_correct(net.module, test)
            print(f"epoch {epoch + 1} loss {loss:.4f} accuracy {100 * right / len(test):.2f} %")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
