# SPDX-License-Identifier: Apache-2.0
"""One rank is slow: plain DistributedDataParallel beside libmsdu, in the same job.

sudo python3 bench/lab --hosts 2 --per-host 2 --speeds 1,1,1,.25 -- \
    build/venv/bin/python examples/uneven_ranks.py --figure uneven.png

DDP waits for the slowest rank in every step. Then the same net is trained by msdu.attach() with
uneven=auto (uneven=clock where the library has no auto), where nobody waits. Rank 0 prints what it
sees, and how much sooner it is as good as DDP was.
"""

import argparse
import gc
import itertools
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from digits import count_correct, load, make_net
from torch import nn

try:
    import msdu
except ImportError:  # not installed: this checkout's
    sys.path.append(str(Path(__file__).resolve().parents[1] / "python_shim"))
    import msdu

NEAR = 0.5  # points: as good as DDP
EVERY_S = 1.0  # between two lines
TESTED = 400  # images: rank 0 has other things to do


def setting():
    """auto, if this library has it."""
    return "auto" if "auto" in msdu.settings()["uneven"].range.split(", ") else "clock"


class Course:
    """Accuracy over time, on rank 0."""

    def __init__(self, name, net, test):
        self.name, self.net, self.test = name, net, test
        self.began = self.last = time.monotonic()
        self.points = []

    def look(self, what, is_last=False):
        """A point and a line now and then; what() adds to the line."""
        now = time.monotonic()
        if dist.get_rank() or (now - self.last < EVERY_S and not is_last):
            return
        self.points.append((now - self.began, 100 * count_correct(self.net, self.test) / len(self.test)))
        self.net.train()
        self.last = time.monotonic()
        at, accuracy = self.points[-1]
        print(f"{self.name:>5} {at:6.1f} s  accuracy {accuracy:5.2f} %  {what()}", flush=True)


def steps(train, batch, rank):
    """Endless batches, each rank's from all samples."""
    numbers = torch.Generator().manual_seed(rank)
    x, y = train.tensors
    while True:
        chosen = torch.randint(0, len(x), (batch,), generator=numbers)
        yield x[chosen], y[chosen]


def begin(lr):
    """The same net on all ranks and both times."""
    torch.manual_seed(0)
    net = make_net()
    return net, torch.optim.SGD(net.parameters(), lr, momentum=0.9)


def step(called, optimizer, x, y):
    """One step of either."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(called(x), y).backward()
    optimizer.step()


def train_ddp(args, train, test):
    """So many steps in which all ranks wait for each other."""
    net, optimizer = begin(args.lr)
    called = nn.parallel.DistributedDataParallel(net)
    course = Course("DDP", net, test)
    for i, (x, y) in enumerate(itertools.islice(steps(train, args.batch, dist.get_rank()), args.steps)):
        step(called, optimizer, x, y)
        course.look(lambda: f"step {i + 1}", i + 1 == args.steps)  # noqa: B023 - called at once
    return course


def train_ours(args, train, test, seconds):
    """The same time, in which each rank makes the steps that it can."""
    net, optimizer = begin(args.lr)
    run = msdu.attach(net, optimizer, uneven=setting())
    course = Course("msdu", net, test)

    def what():
        now = run.summary()
        state = getattr(now, "state", setting())
        return f"step {now.steps}, round {now.rounds}, {state}, h {now.interval_steps}, {now.wire}"

    for x, y in steps(train, args.batch, dist.get_rank()):
        step(net, optimizer, x, y)
        course.look(what)
        if time.monotonic() - course.began > seconds:
            break
    counters = run.summary()
    run.join()  # each rank stops by its own watch; while rounds are exact others may take a step more
    run.finish()
    run.close()
    course.look(what, is_last=True)
    return course, counters


def tell(ddp, ours, rows):
    """Steps of every rank, and the time saved."""
    for rank, (made, missed) in enumerate(rows):
        print(f"rank {rank}: {made} steps, missed {missed} rounds")
    whole, goal = ddp.points[-1]
    at = next((at for at, accuracy in ours.points if accuracy >= goal - NEAR), None)
    if at is None or at >= whole:
        print(f"msdu was not within {NEAR} points of DDP's {goal:.2f} % sooner than {whole:.1f} s")
    else:
        print(f"DDP: {goal:.2f} % in {whole:.1f} s. msdu was within {NEAR} points of it after "
              f"{at:.1f} s: {100 * (1 - at / whole):.0f} % of the time saved")  # fmt: skip


def draw(courses, path):
    """Accuracy over time."""
    try:
        import matplotlib
    except ImportError:
        print("no figure: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for course in courses:
        axes.plot(*zip(*course.points), marker="o", markersize=3, label=course.name)
    axes.set(xlabel="seconds", ylabel="test accuracy %", title="One rank is slow")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    print(f"figure: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's idx files; else scikit-learn's digits")
    parser.add_argument("--steps", type=int, default=300, help="of DDP")
    parser.add_argument("--batch", type=int, default=64, help="a rank")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--figure", help="file to draw into")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train, test = load(args.data)
    test = torch.utils.data.Subset(test, range(min(len(test), TESTED)))
    ddp = train_ddp(args, train, test)
    seconds = [ddp.points[-1][0] if ddp.points else 0.0]
    dist.broadcast_object_list(seconds, src=0)
    ours, counters = train_ours(args, train, test, seconds[0])
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (counters.steps, counters.missed))
    if dist.get_rank() == 0:
        tell(ddp, ours, rows)
        if args.figure:
            draw((ddp, ours), args.figure)
    gc.collect()  # what is left of DDP goes before the group that it uses
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
