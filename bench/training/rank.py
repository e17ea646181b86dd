# SPDX-License-Identifier: Apache-2.0
"""One rank of one run: trains, evaluates, and on rank 0 writes what came of it."""
from __future__ import annotations

import copy
import dataclasses
import datetime
import gc
import json
import math
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from . import allocator, data, methods, models, sockets
from .group import Group, Processes
from .method import Job, Method


@dataclasses.dataclass
class Options:
    """What a run is; the fields are the options of train.py, resolved."""

    model: str
    dataset: str
    method: str
    data: str | None
    cache: str | None
    seed: int
    lr: float
    batch: int
    epochs: int
    samples: int
    test_samples: int
    steps: int  # 0: all; else stop after so many, for step times
    evaluations: int  # evaluation points spread over the run; 0: none
    optimizer: str
    weight_decay: float
    warmup: float
    size: dict[str, Any]
    settings: dict[str, str]
    device: str
    threads: int
    uneven: dict[str, Any] | None = None  # ranks of different speeds: uneven_rank.py
    converge: dict[str, Any] | None = None  # several lengths at once: converge_run.py


@dataclasses.dataclass
class Progress:
    """What is gathered while a run goes on; times and bytes without evaluations."""

    step: int = 0
    train_s: float = 0.0
    sent: int = 0  # over TCP
    link_sent: int = 0  # by the rank's own interface, where it has one
    windows: list[float] = dataclasses.field(default_factory=list)  # seconds of WINDOW steps each
    losses: list[float] = dataclasses.field(default_factory=list)
    points: list[dict[str, float]] = dataclasses.field(default_factory=list)


def rate_factor(step: float, total: int, warmup: float) -> float:
    """Learning rate of a step relative to the largest: linear warm-up, then a cosine to zero."""
    first = max(1, int(total * warmup))
    if step < first:
        return (step + 1) / first
    return 0.5 * (1 + math.cos(math.pi * (step - first) / max(1, total - first)))


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy over labels or characters."""
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def _averaged(model: nn.Module, group: Group) -> nn.Module:
    """A copy whose parameters and float buffers are the mean over ranks: what local methods
    would give out if training ended here. Equal to the model where ranks are equal."""
    mean = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in (*mean.parameters(), *mean.buffers()):
            if tensor.is_floating_point():
                whole = tensor.detach().clone(memory_format=torch.contiguous_format)
                group.add_up(whole)
                tensor.copy_(whole / group.ranks)
    return mean.eval()


UNTIMED = 32  # first steps: connections are made, caches filled, policies find their way
WINDOW = 64  # steps; a multiple of every period, so that a window has its share of exchanges


class Run:
    """A run of one rank."""

    def __init__(self, options: Options, group: Group | None = None) -> None:
        self.group = group or Processes()
        self.options, self.rank, self.ranks = options, self.group.rank, self.group.ranks
        self.device = torch.device(options.device)
        self.dataset = data.load(options.dataset, options.data, options.cache)
        length = options.size.get("length", 64)
        samples = data.training_samples(self.dataset, options.samples, length)
        self.shards = data.Shards(samples, self.ranks, self.rank, options.batch, options.seed,
                                  length)
        self.total = self.total_steps()
        if self.total == 0:
            raise ValueError(f"{samples} samples make no step of {self.ranks} x {options.batch}")
        self.make()
        self.progress = Progress()
        last = min(options.steps, self.total) if options.steps else self.total
        self.last = last
        self.stops = {math.ceil(last * (i + 1) / options.evaluations)
                      for i in range(options.evaluations)}

    def make(self) -> None:
        """Model, optimizer and method, the same on all ranks."""
        self.build()
        self.method = self.make_method(Job(
            self.model, self.inner, self.rank, self.ranks, self.total,
            dict(self.options.settings)))

    def build(self) -> None:
        """Model and optimizer, by the seed."""
        options = self.options
        torch.manual_seed(options.seed)
        self.model = models.build(options.model, self.dataset.classes, options.size
                                  ).to(self.device)
        self.inner = models.optimizer(options.optimizer, self.model, options.lr,
                                      options.weight_decay)

    def make_method(self, job: Job) -> Method:
        """The method by its name."""
        return methods.create(self.options.method, job)

    def total_steps(self) -> int:
        """Steps over which the learning rate falls to zero."""
        return self.shards.steps * self.options.epochs

    def train(self) -> None:
        """All epochs, or as many steps as asked for."""
        self.group.barrier()
        self.start_counting()
        for epoch in range(self.options.epochs):
            for x, y in data.training_batches(self.dataset, self.shards, epoch):
                self.step(x.to(self.device), y.to(self.device))
                if self.progress.step in self.stops and self.progress.step < self.last:
                    self._pause()
                    self._evaluate()
                    self._resume()
                if self.progress.step == self.last:
                    self.end()
                    return

    def step(self, x: Tensor, y: Tensor) -> None:
        """One training step."""
        self._set_rate(self.rate_factor())
        self.method.zero_grad()
        loss = self.loss(self.method.forward(x), y)
        loss.backward()
        self.method.step()
        self.progress.losses.append(loss.item())
        self.progress.step += 1
        self._time()

    def rate_factor(self) -> float:
        """Learning rate of this step relative to the largest."""
        return rate_factor(self.position(), self.total, self.options.warmup)

    def position(self) -> float:
        """Where in total_steps() this step is."""
        return self.progress.step

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """What this rank's gradients are of."""
        return loss_of(output, target)

    def _set_rate(self, factor: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = self.options.lr * factor

    def _time(self) -> None:
        """A window ends after WINDOW steps; first steps and evaluations are in none."""
        if self.progress.step <= UNTIMED:
            self._window = (self.progress.step, time.perf_counter())
        elif self.progress.step - self._window[0] == WINDOW:
            now = time.perf_counter()
            self.progress.windows.append(now - self._window[1])
            self._window = (self.progress.step, now)

    def _pause(self) -> None:
        """Stop the clock. The barrier lets what other ranks still wait for be sent first."""
        self.method.settle()
        self.progress.train_s += time.perf_counter() - self._mark
        self.group.barrier()
        self.progress.sent += self.bytes_sent() - self._sent
        self.progress.link_sent += (sockets.interface_bytes_sent() or 0) - self._link_sent

    def bytes_sent(self) -> int:
        """By this rank so far."""
        return sockets.bytes_sent()

    def start_counting(self) -> None:
        """Time and bytes count from now on."""
        self._sent = self.bytes_sent()
        self._link_sent = sockets.interface_bytes_sent() or 0
        self._mark = time.perf_counter()
        self._window = (self.progress.step, self._mark)

    def _resume(self) -> None:
        self.group.barrier()
        self.start_counting()

    def end(self) -> None:
        """After the last step."""
        self.method.finish()
        self._pause()
        if self.options.evaluations:
            self._evaluate()

    def _evaluate(self) -> None:
        """One point: test loss and accuracy of the mean of all ranks, each testing its part."""
        mean = _averaged(self.model, self.group)
        sums = torch.zeros(3, dtype=torch.float64)
        with torch.no_grad():
            for x, y in data.test_batches(self.dataset, self.shards, self.options.test_samples):
                y = y.to(self.device)
                output = mean(x.to(self.device))
                sums += torch.tensor([loss_of(output, y).item() * y.numel(),
                                      (output.argmax(-1) == y).sum().item(), y.numel()])
        window = self.progress.losses[-50:]
        shared = torch.cat([sums, torch.tensor([sum(window) / len(window), self.progress.sent])])
        self.group.add_up(shared)
        loss, right, count, train_loss, sent = shared.tolist()
        step = self.progress.step
        self.progress.points.append({
            "step": step, "samples": step * self.ranks * self.options.batch,
            "loss": loss / count, "accuracy": 100 * right / count,
            "train_loss": train_loss / self.ranks, "bytes": sent / self.ranks,
            "seconds": self.progress.train_s})

    def result(self) -> dict[str, Any]:
        """Fields of the record that only the ranks know; the same on all."""
        own = {"sent": self.progress.sent, "link": self.progress.link_sent,
               "train_s": self.progress.train_s,
               "step_s": statistics.median(self.progress.windows) / WINDOW
               if self.progress.windows else self.progress.train_s / self.progress.step}
        everyone = self.group.gather(own)
        points = self.progress.points
        metric = "loss" if self.dataset.is_text else "accuracy"
        return {
            "metric": metric, "final": points[-1][metric] if points else None,
            **{f"eval_{key}": [point[key] for point in points]
               for key in ("samples", "loss", "accuracy", "train_loss", "bytes", "seconds")},
            "steps": self.progress.step, "samples_per_epoch": self.shards.samples,
            "samples": self.progress.step * self.ranks * self.options.batch,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "bytes_per_rank": max(one["sent"] for one in everyone),
            "bytes_total": sum(one["sent"] for one in everyone),
            "interface_bytes_per_rank": max(one["link"] for one in everyone)
            if sockets.interface_bytes_sent() is not None else None,
            "wall_s": max(one["train_s"] for one in everyone),
            "step_median_s": max(one["step_s"] for one in everyone),
            "final_train_loss": sum(self.progress.losses[-50:]) / len(
                self.progress.losses[-50:]),
            **({"gpu": torch.cuda.get_device_name(self.device)}
               if self.device.type == "cuda" else {}), **self.method.facts()}


def train_once(options: Options, kind: type[Run] = Run) -> dict[str, Any]:
    """A whole run over the default group; what it holds of the group is released on return."""
    run = kind(options)
    run.train()
    result = run.result()
    run.method.close()
    return result


def main(options: Options, result_file: str, kind: type[Run] = Run) -> None:
    """Body of a rank: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which."""
    allocator.keep_memory()
    torch.set_num_threads(options.threads)
    is_host = torch.device(options.device).type == "cpu"
    backend = "gloo" if is_host else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=10))
    result = train_once(options, kind)
    if dist.get_rank() == 0:
        part = f"{result_file}.{os.getpid()}"
        with open(part, "w", encoding="utf-8") as file:
            json.dump(result, file)
        os.replace(part, result_file)
    gc.collect()  # DDP's reducer must be gone before the group it uses, or the exit may hang
    dist.barrier()
    dist.destroy_process_group()
