# SPDX-License-Identifier: Apache-2.0
"""One rank of a run over ranks of different speeds: steps are padded, and the run ends by time.

Every rank draws its batches from all samples, so that no rank's samples count for less. A method
whose ranks go on together makes `share` of the steps that DDP makes. One whose ranks do not trains
for `share` of DDP's time. The learning rate falls to zero over either.
"""
from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import data, methods, pacing, peers, rank

BATCHES = "batches"  # a setting of the run: samples by msdu.batches()


def oracle_batches(speeds: list[float], batch: int) -> list[int]:
    """Samples of a step by speed (LB-BSP with speeds known): N times the batch in all, each at
    least one, the largest remainders rounded up."""
    whole = batch * len(speeds)
    wanted = [whole * speed / sum(speeds) for speed in speeds]
    given = [max(1, int(one)) for one in wanted]
    order = sorted(range(len(speeds)), key=lambda i: given[i] - wanted[i])
    for i in itertools.islice(itertools.cycle(order), max(0, whole - sum(given))):
        given[i] += 1
    return given


class UnevenRun(rank.Run):
    """options.uneven: speeds and bursts (of all ranks), base_ms, steps, share, seconds."""

    def __init__(self, options: rank.Options) -> None:
        assert options.uneven is not None
        self.uneven = options.uneven
        self.share = 0.0  # of the run
        self.seen = 0  # samples
        settings = dict(options.settings)
        self.has_batches = settings.pop(BATCHES, "") == "yes"
        super().__init__(dataclasses.replace(options, settings=settings))
        speeds = pacing.pace.speeds_of(self.ranks, self.uneven["speeds"], self.uneven["bursts"],
                                       self.uneven["base_ms"] / 100)
        self.batch = options.batch
        if options.method == "lb-bsp":
            bases = [speed.base for speed in speeds]
            self.batch = oracle_batches(bases, options.batch)[self.rank]
        self.pacing = pacing.Pacing(self.model, speeds[self.rank], self.uneven["base_ms"] / 1e3)

    def total_steps(self) -> int:
        return max(1, round(self.uneven["steps"] * self.uneven["share"]))

    def position(self) -> float:
        return self.share * self.total

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """With DDP every rank's mean counts the same, whatever its samples."""
        weight = self.batch / self.options.batch
        return rank.loss_of(output, target) * weight

    def train(self) -> None:
        """Until the run's share of steps or time is over on this rank."""
        dist.barrier()
        self.pacing.start()
        self.start_counting()
        self.began = time.perf_counter()
        for x, y in self._batches():
            self.step(x, y)
            if self.share >= 1:
                break
        self.end()

    def step(self, x: Tensor, y: Tensor) -> None:
        self.pacing.begin(len(x) / self.options.batch)
        super().step(x, y)
        self.pacing.end()
        self.seen += len(x)
        if self._is_in_step():
            self.share += 1 / self.total
        else:
            spent = time.perf_counter() - self.began
            self.share = max(self.share, spent / self.uneven["seconds"])
        if self.total - self.share * self.total < 1e-6:
            self.share = 1.0

    def _is_in_step(self) -> bool:
        """Do all ranks make the same steps?"""
        if isinstance(self.method, methods.Ours):
            return str(self.method.state()) != "clock"
        return not isinstance(self.method, peers.ParameterServer)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.has_batches:
            yield from self._shared_batches()
            return
        own = data.Shards(self.shards.samples, 1, 0, self.batch,
                          1000 * self.options.seed + self.rank, self.shards.length)
        for epoch in itertools.count():
            yield from data.training_batches(self.dataset, own, epoch)

    def _shared_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """As msdu.batches() deals them."""
        import msdu

        if not hasattr(msdu, "batches"):
            raise methods.Unavailable("this library has no msdu.batches()")
        sampler = msdu.batches(self.shards.samples, self.options.batch, seed=self.options.seed)
        numbers = torch.Generator().manual_seed(1000 * self.options.seed + self.rank)
        for _ in itertools.count():
            for chosen in sampler:
                yield data.batch_of(self.dataset.train, torch.tensor(chosen), numbers,
                                    self.shards.length)

    def result(self) -> dict[str, Any]:
        """With what each rank did."""
        own = torch.tensor([self.progress.step, self.seen])
        everyone = [torch.zeros_like(own) for _ in range(self.ranks)]
        dist.all_gather(everyone, own)
        rows = torch.stack(everyone).tolist()
        return {**super().result(), "share": float(self.uneven["share"]),
                "case": self.uneven["case"], "label": self.uneven["label"],
                "base_ms": float(self.uneven["base_ms"]), "part": self.uneven["part"],
                "steps_by_rank": [row[0] for row in rows], "samples": sum(row[1] for row in rows)}
