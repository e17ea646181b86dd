# SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP over NCCL that knows nothing of the library; and a comparison of its logs.

gpu_ddp.py train: a rank of a job; prints a loss each step on rank 0. Needs torch with CUDA.
gpu_ddp.py compare PLAIN FLOAT32 INT4: logs of the same job without, with, and with the default.
"""

from __future__ import annotations

import sys
from pathlib import Path

STEPS = 60
NEAR = 0.05  # of the loss, with four bits


def train() -> None:
    """A small regression; gradients are reduced by DDP in buckets, losses by hand."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 256)
    ).cuda()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(100 + rank)
    for step in range(STEPS):
        x = torch.randn(64, 256, generator=draw).cuda()
        loss = (wrapped(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {float(mean) / dist.get_world_size()!r}", flush=True)
    dist.destroy_process_group()


def losses(path: str) -> list[float]:
    """Loss of each step in a log."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [float(line.split()[3]) for line in lines if line.startswith("step ")]


def compare(plain: str, exact: str, narrow: str) -> int:
    """0 if float32 has the losses of the plain run, int4 is near them and took gradients."""
    reference = losses(plain)
    near = [abs(x - y) <= NEAR * y for x, y in zip(losses(narrow), reference)]
    text = Path(narrow).read_text(encoding="utf-8")
    checks = {
        "all steps": len(reference) == STEPS and len(near) == STEPS,
        "float32 is the plain run": losses(exact) == reference,
        "int4 is near it": all(near),
        "gradients were recognized": "gradients recognized" in text,
        "fewer bytes": "times fewer" in text,
    }
    for name, is_good in checks.items():
        print(f"{name}: {'yes' if is_good else 'NO'}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        sys.exit(compare(*sys.argv[2:5]))
