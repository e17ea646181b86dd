#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks of different speeds: rounds by the clock beside torch's DDP, at shares of DDP's time.

    build/venv/bin/python bench/training/uneven.py --data DIR --speeds 1,1,1,.25

Real processes over gloo on loopback train the small CNN on CIFAR-100. A rank of speed v takes
1 / v of --base-ms for a step, by sleeping, so that cores stay free. DDP makes --steps steps and
waits for the slowest rank in each. The library (uneven="clock") trains for --shares of that time.
The learning rate falls to zero over the time of a run.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.multiprocessing as spawner
from torch.nn.functional import cross_entropy

from training import data, methods, models

BATCH = 32


class Pace:
    """A step takes 1 / speed of the base time, whatever its computing takes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.computing = 0.0

    def step(self, compute: Any) -> None:
        """Sleep for what computing leaves, before it: as if computing had taken that long."""
        time.sleep(max(self.seconds - self.computing, 0.0))
        began = time.monotonic()
        compute()
        spent = time.monotonic() - began
        self.computing += (0.1 if self.computing else 1.0) * (spent - self.computing)


def accuracy(model: torch.nn.Module, dataset: data.Dataset) -> tuple[float, float]:
    """Percent and mean loss over the test split."""
    right, loss, count = 0, 0.0, 0
    model.eval()
    with torch.no_grad():
        for x, y in data.test_batches(dataset, data.Shards(0, 1, 0, BATCH, 0), 0):
            out = model(x)
            loss += float(cross_entropy(out, y, reduction="sum"))
            right += int((out.argmax(1) == y).sum())
            count += len(y)
    return 100 * right / count, loss / count


def train(rank: int, given: argparse.Namespace, run: dict[str, Any], work: str) -> None:
    """One rank; rank 0 writes the result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{work}/store", rank=rank,
                            world_size=len(given.speeds))
    dataset = data.load("cifar100", given.data)
    torch.manual_seed(run["seed"])
    model = models.build("cnn", dataset.classes, {})
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    is_clock = run["method"] == "clock"
    if is_clock:
        import msdu

        attached = msdu.attach(model, optimizer, uneven="clock", wire=given.wire)
        called: torch.nn.Module = model
    else:
        called = torch.nn.parallel.DistributedDataParallel(model)
    split = dataset.train
    numbers = torch.Generator().manual_seed(1000 * run["seed"] + rank)

    def compute() -> None:
        sample = torch.randint(len(split.x), (BATCH,), generator=numbers).numpy()
        images = data.augmented(torch.from_numpy(split.x[sample]), numbers)
        optimizer.zero_grad()
        cross_entropy(called(data.normalized(images)), torch.from_numpy(split.y[sample])).backward()
        optimizer.step()

    pace = Pace(given.base_ms / 1000 / given.speeds[rank])
    dist.barrier()
    began = time.monotonic()
    steps = 0
    share = 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = run["lr"] * (1 - share)
        pace.step(compute)
        steps += 1
        spent = time.monotonic() - began
        share = spent / run["seconds"] if is_clock else steps / given.steps
    if is_clock:
        attached.synchronize()
    spent = time.monotonic() - began
    result = {**run, "spent": spent, "steps": steps}
    if is_clock:
        counters = attached.summary()
        result |= {"rounds": counters.rounds, "wire": counters.wire}
        attached.finish()
    if rank == 0:
        result["accuracy"], result["loss"] = accuracy(model, dataset)
        pathlib.Path(work, "result.json").write_text(json.dumps(result), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


def measure(given: argparse.Namespace, run: dict[str, Any]) -> dict[str, Any]:
    """A whole run, in processes of its own."""
    with tempfile.TemporaryDirectory() as work:
        spawner.spawn(train, (given, run, work), len(given.speeds))
        found: dict[str, Any] = json.loads(pathlib.Path(work, "result.json").read_text("utf-8"))
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def numbers_of(text: str) -> list[float]:
    """1,1,.25"""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """Run everything, print a table."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", metavar="DIR", required=True, help="folder of CIFAR-100")
    add("--speeds", type=numbers_of, default=[1, 1, 1, 0.25], help="of ranks; 1,1,1,.25")
    add("--base-ms", type=float, default=80, help="step of a rank of speed 1")
    add("--steps", type=int, default=400, help="of DDP")
    add("--shares", type=numbers_of, default=[1, 0.4, 0.3], help="of DDP's time; 1,.4,.3")
    add("--lrs", type=numbers_of, default=[0.02, 0.05], help="each method has its best of these")
    add("--seeds", type=int, default=3)
    add("--wire", default="float32")
    add("--json", metavar="OUT", help="all runs")
    given = made.parse_args()
    methods._use_checkout()  # pylint: disable=protected-access
    runs: list[dict[str, Any]] = []
    print("| method | time | lr | accuracy % | loss | runs |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    seconds = 0.0
    for method, share in [("ddp", 1.0), *(("clock", share) for share in given.shares)]:
        tried = {lr: measure(given, {"method": method, "lr": lr, "seed": 1, "share": share,
                                     "seconds": seconds * share}) for lr in given.lrs}
        best = min(tried, key=lambda lr: tried[lr]["loss"])
        group = [tried[best]] + [
            measure(given, {"method": method, "lr": best, "seed": seed, "share": share,
                            "seconds": seconds * share}) for seed in range(2, given.seeds + 1)]
        runs += [*tried.values(), *group[1:]]
        spent = statistics.mean(one["spent"] for one in group)
        seconds = seconds or spent
        points = [one["accuracy"] for one in group]
        print(f"| {method} | {spent / seconds:.2f} | {best} | {statistics.mean(points):.2f} "
              f"({min(points):.2f} to {max(points):.2f}) "
              f"| {statistics.mean(one['loss'] for one in group):.3f} | {len(group)} |", flush=True)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(runs, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
