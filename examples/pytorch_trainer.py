# SPDX-License-Identifier: Apache-2.0
"""A plain loop for one process, attached in one line; torch.distributed is not needed:

torchrun --nproc-per-node 4 examples/pytorch_trainer.py
"""

import argparse

import torch
from digits import count_correct, load, make_net
from torch import nn
from torch.utils.data import DataLoader, Subset

import msdu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's idx files; else scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    train, test = load(args.data)
    net = make_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.005)
    with msdu.attach(net, optimizer) as run:  # this line; the rest is a loop for one process
        share = Subset(train, range(run.rank, len(train) // run.ranks * run.ranks, run.ranks))
        for epoch in range(args.epochs):
            net.train()
            for x, y in DataLoader(share, batch_size=16, shuffle=True, drop_last=True):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
            run.synchronize()  # all ranks are equal, so any of them may evaluate
            if run.rank == 0:
                right = count_correct(net, test)
                print(f"epoch {epoch + 1} accuracy {100 * right / len(test):.2f} %")
    if run.rank == 0:
        print(run.summary())


if __name__ == "__main__":
    main()
