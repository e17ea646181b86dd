# SPDX-License-Identifier: Apache-2.0
"""Sharded inside each replica by torch, synchronized between replicas by libmsdu:

torchrun --nproc-per-node 4 examples/fsdp_train.py --shards 2
"""

import argparse

import torch
import torch.distributed as dist
from digits import count_correct, load, make_net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import msdu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's idx files; else scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--shards", type=int, default=2, help="ranks of a replica")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = load(args.data)
    shape = (dist.get_world_size() // args.shards, args.shards)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    net = make_net()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["shard"])
    fully_shard(net, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.005)
    sampler = DistributedSampler(train)  # every rank has samples of its own
    with msdu.attach(net, optimizer, mesh=mesh["replicate"]) as run:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(train, 16, sampler=sampler, drop_last=True):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
            run.synchronize()  # all replicas are equal
            right = count_correct(net, test)  # by all ranks: each forward gathers the shards
            if dist.get_rank() == 0:
                print(f"epoch {epoch + 1} accuracy {100 * right / len(test):.2f} %")
    if dist.get_rank() == 0:
        print(run.summary())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
