#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer of `msdu bench overlap`: the same model profile through PyTorch's own
DistributedDataParallel over gloo. One process for each rank, started by torchrun or bench/lab:

    torchrun --nproc-per-node 4 bench/overlap/overlap_ddp.py --profile resnet50 --scale 0.1 --link-mbit 940

Layers are modules with the profile's tensors as parameters, whose forward and backward passes
sleep until a deadline (times of the profile, scaled as msdu does it), so that the processor stays
free, as it is beside a GPU. Backward passes return new gradients, which DDP reduces in its buckets
of 25 MiB (times --scale). Mean gradients are compared with arithmetic, bit for bit.
overlap_table.py runs both in one laboratory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Profile = dict[str, Any]
PROFILES = Path(__file__).resolve().parents[1] / "profiles"
PERIOD = 65521  # elements of the pattern that gradients are read from
BUCKET_MIB = 25.0
BLOCKED_S = 20e-6  # a wait that took less did not hold the device up
LATE_S = 1e-6


class Device:
    """A device that runs one operation after another; time in seconds."""

    def __init__(self) -> None:
        self.due = 0.0
        self.step = 0

    def run(self, seconds: float) -> None:
        """One operation: begins when the one before ends, whenever this thread wakes up."""
        self.due += seconds
        while (left := self.due - time.monotonic()) > LATE_S:
            time.sleep(left)

    def wait_since(self, began: float) -> None:
        """It stood still if this thread was blocked since `began`."""
        now = time.monotonic()
        if now - began > BLOCKED_S:
            self.due = max(self.due, now)

    def begin(self) -> None:
        """A step: what was late is never made up for."""
        self.due = max(self.due, time.monotonic())


class Pass(torch.autograd.Function):
    """Forward and backward pass of a layer: sleeps, and new gradients for its tensors."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """x: a tensor that only carries the order of layers."""
        ctx.layer = layer
        layer.device.run(layer.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gradients of the layer, as its device computes them."""
        layer: Layer = ctx.layer
        made = [layer.gradient(i) for i in range(len(layer.counts))]
        layer.device.run(layer.backward_s)
        return (None, grads[0], *made)


class Layer(nn.Module):
    """One layer of the profile: counts are elements, times seconds."""

    def __init__(self, layer: Profile, scale: float, times: float, device: Device,
                 pattern: torch.Tensor) -> None:
        super().__init__()
        self.forward_s = layer["forward_us"] * times * 1e-6
        self.backward_s = layer["backward_us"] * times * 1e-6
        self.device = device
        self.pattern = pattern
        self.counts = [scaled(t["count"], scale) for t in layer["tensors"]]
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in self.counts)

    def gradient(self, index: int) -> torch.Tensor:
        """This rank's gradient of a tensor: the pattern, over and over."""
        count = self.counts[index]
        return self.pattern.repeat(-(-count // PERIOD))[:count]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleeps."""
        out: torch.Tensor = Pass.apply(self, x, *self.tensors)  # type: ignore[no-untyped-call]
        return out


def scaled(count: int, scale: float) -> int:
    """Elements of a tensor, as msdu scales them."""
    return max(1, int(count * scale + 0.5))


def read_profile(name: str) -> Profile:
    """By name or file. SystemExit with one line if there is none."""
    path = Path(name) if "/" in name or Path(name).exists() else PROFILES / f"{name}.json"
    try:
        profile: Profile = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"overlap_ddp: {path}: {error}") from None
    return profile


def times_factor(profile: Profile, args: argparse.Namespace, ranks: int) -> float:
    """What times are multiplied with: --scale, and what gives the ratio wanted."""
    layers = profile["layers"]
    compute = sum(x["forward_us"] + x["backward_us"] for x in layers) * args.scale
    count = sum(scaled(t["count"], args.scale) for x in layers for t in x["tensors"])
    link_us = 2 * (ranks - 1) / ranks * 4 * count * 8 / args.link_mbit
    return float(args.scale * (link_us / args.ratio / compute if args.ratio > 0 else 1))


def make_pattern(rank: int) -> torch.Tensor:
    """PERIOD multiples of 1/64, times 1 + rank: every order of adding gives the same bits."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(PERIOD, generator=generator).mul(64).round().div(64) * (1 + rank)


def count_wrong(layers: list[Layer], ranks: int) -> int:
    """Tensors whose gradient is not the mean over ranks."""
    wrong = 0
    base = make_pattern(0) * (ranks + 1) / 2
    for layer in layers:
        for tensor, count in zip(layer.tensors, layer.counts):
            wanted = base.repeat(-(-count // PERIOD))[:count]
            # DDP divides first, which is exact for powers of two
            close = 0.0 if ranks & (ranks - 1) == 0 else 1e-6
            is_right = tensor.grad is not None and torch.allclose(tensor.grad, wanted, close, close)
            wrong += 0 if is_right else 1
    return wrong


def replay(model: nn.Module, device: Device, steps: int) -> list[float]:
    """Times of steps, in seconds."""
    spent = []
    for _ in range(steps):
        began = time.monotonic()
        device.begin()
        out = model(torch.zeros(1, requires_grad=True))
        out.sum().backward()
        device.wait_since(device.due)  # DDP waited for its buckets
        spent.append(time.monotonic() - began)
        if len(spent) < steps:
            model.zero_grad(set_to_none=True)
    return spent


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All of a rank; the record, which is rank 0's to write."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    profile = read_profile(args.profile)
    times = times_factor(profile, args, ranks)
    device = Device()
    pattern = make_pattern(rank)
    layers = [Layer(x, args.scale, times, device, pattern) for x in profile["layers"]]
    bucket = max(0.25, BUCKET_MIB * min(1.0, args.scale))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket)
    replay(model, device, args.warmup)
    cpu = time.process_time()
    spent = replay(model, device, args.steps)
    cpu = (time.process_time() - cpu) / args.steps
    numbers = torch.tensor([statistics.median(spent), sorted(spent)[int(args.steps * 0.9)],
                            float(count_wrong(layers, ranks))], dtype=torch.float64)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    compute = sum(x.forward_s + x.backward_s for x in layers)
    bytes_sent = 2 * (ranks - 1) / ranks * 4 * sum(n for x in layers for n in x.counts)
    step, p90, wrong = numbers.tolist()
    per_us = args.link_mbit / 8
    return {
        "name": "overlap", "profile": profile["name"], "method": "ddp", "ranks": ranks,
        "comm_comp_ratio": bytes_sent / per_us / (compute * 1e6), "step_us": step * 1e6,
        "p90_us": p90 * 1e6, "compute_us": compute * 1e6, "cpu_us": cpu * 1e6,
        "exposed_share": max(0.0, 1 - compute / step), "bytes": bytes_sent,
        "link_use": bytes_sent / per_us / (step * 1e6), "link_mbit": args.link_mbit,
        "scale": args.scale, "steps": args.steps, "wrong": wrong, "interval": 1,
        "wire": "float32", "torch": torch.__version__,
    }


def main() -> int:
    """One rank; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description="A model profile through PyTorch's DDP.")
    parser.add_argument("--profile", default="resnet50", help="name or file")
    parser.add_argument("--scale", type=float, default=1.0, help="of times, tensors and buckets")
    parser.add_argument("--ratio", type=float, default=1.0,
                        help="communication by computation; 0: the profile's times")
    parser.add_argument("--link-mbit", type=float, required=True, help="rate of a rank's link")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=12)
    parser.add_argument("--json", help="file of the record")
    args = parser.parse_args()
    if min(args.scale, args.link_mbit, args.steps, args.warmup) <= 0 or args.ratio < 0:
        parser.error("numbers must be positive")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    record = measure(args)
    if dist.get_rank() == 0:
        print(f"{record['method']:>16} {record['step_us']:10.0f} {record['p90_us']:10.0f} us, "
              f"exposed {100 * record['exposed_share']:.1f} %, wrong {record['wrong']:.0f}")
        if args.json:
            Path(args.json).write_text(json.dumps([record], indent=1) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
