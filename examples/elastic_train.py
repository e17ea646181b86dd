# SPDX-License-Identifier: Apache-2.0
"""Workers may be killed and started while it trains; on each machine:

torchrun --nnodes=1:4 --nproc-per-node=1 --max-restarts=9 --rdzv-backend=msdu \
    --rdzv-endpoint=node0:29400 --rdzv-id=run7 examples/elastic_train.py
"""

import argparse
import os
import time

import torch
from digits import count_correct, load, make_net
from torch import nn
from torch.utils.data import DataLoader

import msdu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's idx files; else scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0, help="seconds of a step beside its work")
    args = parser.parse_args()
    torch.manual_seed(0)
    train, test = load(args.data)
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, gamma=0.9)
    with msdu.attach(net, optimizer) as run:
        work = msdu.batches(len(train), 16)  # whose samples are whose, in whatever group
        run.keep(schedule, work)  # equal on all ranks: a new one takes them here
        loader = DataLoader(train, batch_sampler=work)
        print(f"process {os.getpid()} is rank {run.rank} of {run.ranks}", flush=True)
        group = run.group
        for epoch in work.epochs(args.epochs):  # from the one in which the others are
            net.train()
            for x, y in loader:
                time.sleep(args.pause)
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                schedule.step()
                if run.group != group:
                    group = run.group
                    print(f"process {os.getpid()} is rank {run.rank} of {run.ranks} now", flush=True)
            run.synchronize()
            if run.rank == 0:
                right = count_correct(net, test)
                print(f"epoch {epoch + 1} accuracy {100 * right / len(test):.2f} %", flush=True)


if __name__ == "__main__":
    main()
