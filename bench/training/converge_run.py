# SPDX-License-Identifier: Apache-2.0
"""One training to convergence: all ranks as threads of one process, and horizons of one run.

What ranks exchange goes through the library itself, over its backend "local"; `ddp` takes the mean
of all gradients. One torch thread each: on one core they take turns.

The learning rate warms up, stays, and falls to zero over the last `decay` of the run. The part
before that is the same for all lengths. So one run gives results for several: where a shorter one
would begin to fall, the state of all ranks is kept; the rate falls; the result is taken; and the
run goes on from what was kept. Horizons of 1/4, 1/2 and 1 cost 1.15 runs.
"""
from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import allocator, data, methods, models, outcome, rank
from .converge_replay import Replay
from .group import Group, Meeting, Processes, Threads
from .method import Job, Method

State = dict[str, Any]  # of one rank


@dataclasses.dataclass
class Plan:
    """rank.Options.converge.

    state  file that keeps a run between horizons, so that it can be killed
    start  file that it begins with; "": none
    end    file for the state at its end, for others to start with; "": none
    """

    ranks: int
    shares: list[float]
    decay: float
    state: str = ""
    start: str = ""
    end: str = ""


def factor(step: int, warm: int, falls_at: int, end: int) -> float:
    """Learning rate of a step relative to the largest; before falls_at it does not know the end."""
    if step < warm:
        return (step + 1) / warm
    return 1.0 if step < falls_at else (end - step) / (end - falls_at)


class Mean(Method):
    """Plain data parallelism: the optimizer sees the mean gradient of all ranks."""

    def __init__(self, job: Job, group: Group) -> None:
        super().__init__(job)
        self.group, self.sent = group, 0
        parameters = sum(p.numel() for p in job.model.parameters())
        self.step_bytes = int(outcome.plain_bits(job.ranks, parameters) / 8)

    def step(self) -> None:
        gradients = [p.grad for p in self.job.model.parameters() if p.grad is not None]
        whole = torch.cat([one.reshape(-1) for one in gradients])
        self.group.add_up(whole)
        for one, part in zip(gradients, whole.split([one.numel() for one in gradients])):
            one.copy_(part.view(one.shape) / self.group.ranks)
        self.optimizer.step()
        self.sent += self.step_bytes


def threaded(name: str, job: Job, group: Group, label: str) -> Method:
    """The method for ranks that are threads."""
    if name == "ddp":
        return Mean(job, group)
    own = {"backend": "local", "ranks": str(job.ranks), "rank": str(job.rank), "job": label,
           "hosts": "flat"}
    if name.startswith("replay-"):
        job.settings.update(own)
        return Replay(job)
    base, implied = methods.expand(name)
    if base != "ours":
        raise ValueError(f"method {name} does not run with ranks as threads")
    job.settings = {**implied, **job.settings, **own}
    return methods.Ours(job)


class ConvergeRun(rank.Run):
    """A rank; with group Processes the same over real processes."""

    lock = threading.Lock()  # torch's random numbers belong to all threads

    def __init__(self, options: rank.Options, group: Group | None = None) -> None:
        assert options.converge is not None
        self.plan = Plan(**options.converge)
        self.falls_at = self.end_at = math.inf
        super().__init__(options, group)
        self.ends = [math.ceil(self.total * share) for share in self.plan.shares]

    def build(self) -> None:
        with self.lock:
            super().build()
        self.generator = torch.Generator().manual_seed(1000 * self.options.seed + self.rank)
        if isinstance(self.model, models.WideVgg):
            self.model.generator = self.generator  # dropout of a rank's own
        if self.plan.start:
            _begin_with(self.model, self.inner, torch.load(self.plan.start, weights_only=True))

    def make_method(self, job: Job) -> Method:
        if isinstance(self.group, Processes):
            is_replay = self.options.method.startswith("replay-")
            return Replay(job) if is_replay else super().make_method(job)
        return threaded(self.options.method, job, self.group, f"converge-{os.getpid()}")

    def bytes_sent(self) -> int:
        """By the library's count, or that of a plain allreduce."""
        if isinstance(self.method, Mean):
            return self.method.sent
        if isinstance(self.method, methods.Ours):
            return self.method.bytes_sent()
        return super().bytes_sent()

    def rate_factor(self) -> float:
        warm = int(self.total * self.options.warmup)
        return factor(self.progress.step, warm, int(min(self.falls_at, self.total)),
                      int(min(self.end_at, self.total)))

    def train(self) -> None:
        """All horizons that the kept state does not have yet."""
        file = pathlib.Path(self.plan.state) if self.plan.state else None
        self.start_counting()
        if file and file.exists():
            self._restore(torch.load(file, weights_only=False)[self.rank])
        for end in self.ends[len(self.progress.points):]:
            falls_at = end - round(end * self.plan.decay)
            self._go_to(falls_at)
            kept = self._kept()
            self.falls_at, self.end_at = falls_at, end
            self._go_to(end)
            if self.plan.end and end == self.ends[-1]:
                self._keep_end()
            self.end()
            self.falls_at = self.end_at = math.inf
            if end != self.ends[-1]:
                self._restore({**kept, "points": self.progress.points})
                self._save(file)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """From the present step on."""
        epoch, done = divmod(self.progress.step, self.shards.steps)
        while True:
            stream = data.training_batches(self.dataset, self.shards, epoch)
            yield from itertools.islice(stream, done, None)
            epoch, done = epoch + 1, 0

    def _go_to(self, step: int) -> None:
        for x, y in itertools.islice(self._batches(), step - self.progress.step):
            self.step(x, y)

    def _kept(self) -> State:
        """Everything that a branch changes."""
        self._pause()
        state = {"method": self.method.saved(), "model": self.model.state_dict(),
                 "optimizer": self.inner.state_dict(), "generator": self.generator.get_state(),
                 "step": self.progress.step, "sent": self.progress.sent,
                 "losses": self.progress.losses[-50:], "train_s": self.progress.train_s}
        state = copy.deepcopy(state)
        self._resume()
        return state

    def _restore(self, state: State) -> None:
        """Go on from there with a model, an optimizer and a method made anew."""
        self.group.barrier()
        self.method.close()
        self.make()
        self.model.load_state_dict(state["model"])
        self.inner.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.group.barrier()  # load() may leave the job, in which no rank may begin then
        self.method.load(state["method"])
        self.generator.set_state(state["generator"])
        self.progress = rank.Progress(
            step=state["step"], sent=state["sent"], losses=list(state["losses"]),
            train_s=state["train_s"], points=list(state["points"]))
        self._resume()

    def _save(self, file: pathlib.Path | None) -> None:
        """All ranks' states, by rank 0."""
        states = self.group.gather({**self._kept(), "points": self.progress.points})
        if file and self.rank == 0:
            part = file.with_suffix(".part")
            torch.save(states, part)
            part.replace(file)
        self.group.barrier()

    def _keep_end(self) -> None:
        """For others to start with: rank 0's, which with DDP is everybody's."""
        if self.rank == 0:
            torch.save({"model": self.model.state_dict(), "optimizer": self.inner.state_dict()},
                       self.plan.end)


def _begin_with(model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Take what fits: a new head keeps its own first values, and then the optimizer is new too."""
    own = model.state_dict()
    fitting = {name: value for name, value in state["model"].items()
               if name in own and own[name].shape == value.shape}
    model.load_state_dict({**own, **fitting})
    if len(fitting) == len(own):
        lr = optimizer.param_groups[0]["lr"]
        optimizer.load_state_dict(state["optimizer"])
        for group in optimizer.param_groups:
            group["lr"] = lr


def _as_thread(options: rank.Options, group: Threads, results: list[Any]) -> None:
    """One rank; what it failed with takes the place of its result."""
    torch.set_num_threads(1)
    try:
        run = ConvergeRun(options, group)
        run.train()
        results[group.rank] = run.result()
        group.barrier()
        run.method.close()
    except BaseException as problem:  # raised again by train_once()
        results[group.rank] = problem
        group.meeting.barrier.abort()


def train_once(options: rank.Options) -> dict[str, Any]:
    """A whole run of threads. Raises what the first rank to fail did."""
    assert options.converge is not None
    ranks = options.converge["ranks"]
    meeting, results = Meeting(ranks), [None] * ranks
    threads = [threading.Thread(target=_as_thread, args=(options, Threads(meeting, i), results))
               for i in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed: list[Any] = [one for one in results if isinstance(one, BaseException)]
    failed.sort(key=lambda one: isinstance(one, threading.BrokenBarrierError))
    if failed:
        raise failed[0]
    found: Any = results[0]
    return dict(found)


def main(options: rank.Options, result_file: str) -> None:
    """Body of the process."""
    allocator.keep_memory()
    torch.set_num_threads(1)
    pathlib.Path(result_file).write_text(json.dumps(train_once(options)), encoding="utf-8")
