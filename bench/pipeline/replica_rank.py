# SPDX-License-Identifier: Apache-2.0
"""One rank of two pipelines of two machines each: joined by msdu.pipeline() as it comes, the same
plan without an exchange, and torch's 1F1B with DDP around every stage."""
from __future__ import annotations

import os
import statistics
from typing import Any

import msdu
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import cases, engines, text, text_rank
from .orders import Way

STAGES = 2


class Place:
    """Rank r is machine r % 2 of replica r / 2."""

    def __init__(self) -> None:
        self.replicas = dist.get_world_size() // STAGES
        self.replica, self.machine = divmod(dist.get_rank(), STAGES)
        pipelines = [engines.group_of([STAGES * r + s for s in range(STAGES)])
                     for r in range(self.replicas)]
        columns = [engines.group_of([STAGES * r + s for r in range(self.replicas)])
                   for s in range(STAGES)]
        self.pipeline, self.column = pipelines[self.replica], columns[self.machine]


def _joined(size: text.Size, place: Place, batches: text.Text) -> msdu.Pipeline:
    return msdu.pipeline(text.factories(size), text.loss, text.optimizer, batches.example(),
                         size.micro_batches, replicas=place.replicas, seed=size.seed)


def _apart(way: Way, size: text.Size, place: Place) -> text_rank.Step:
    """A way without msdu's exchange."""

    def ddp(part: nn.Module) -> nn.Module:
        return DistributedDataParallel(part, process_group=place.column)

    engine = engines.Engine(way, lambda n: text.layer(size, n), size.forms(), text.loss,
                            place.machine, place.pipeline, ddp if "DDP" in way.name else None)
    return text_rank.by_hand(list(engine.pieces.values()), engine.gradients)


def _run(name: str, step: text_rank.Step, steps: int, place: Place, batches: text.Text
         ) -> dict[str, Any]:
    """A method from the start; its result on all ranks."""
    dist.barrier()
    seconds, losses = text_rank.train(step, steps, lambda n: batches.batch(n, place.replica))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (seconds, losses))
    # a mean, since not every step exchanges
    mean = max(statistics.fmean(text_rank.last(seconds)) for seconds, _ in every)
    # of all ranks that know their replica's
    means = [statistics.fmean(values) for values in zip(*[losses for _, losses in every if losses])]
    return {"method": name, "seconds": [mean], "steps": steps, "losses": means}


def main(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Results by method, on rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    os.environ.pop("MSDU_RENDEZVOUS", None)  # of the lab: one port, and here are several groups
    size, steps = text.Size(**task["size"]), task["steps"]
    place, batches = Place(), text.Text(size)
    pipe = _joined(size, place, batches)
    joined = _run("msdu", pipe.step, steps["msdu"], place, batches)
    summary = pipe.summary()
    joined["interval_steps"] = [one.interval_steps for one in summary.exchanges.values()]
    pipe.finish()
    plan = pipe.plan
    counts = [stage.end - stage.first for stage in plan.stages]
    rows = [stage.device for stage in plan.stages]
    alone = Way("pipeline alone", [0, 1], rows, counts, "plan", size.micro_batches, plan)
    equal = Way("pipeline + DDP", [0, 1], [0, 1], cases.equal_counts(size.layers, STAGES), "1f1b",
                size.micro_batches)
    found = [joined]
    for way in (alone, equal):
        step = _apart(way, size, place)
        found.append(_run(way.name, step, steps[way.name], place, batches))
    for one, way in zip(found, (alone, alone, equal)):
        one["counts"] = way.counts
        one["predicted_s"] = plan.step_ns / 1e9 if way is alone else None
        one["parameters"] = sum(p.numel() for make in text.factories(size)
                                for p in make().parameters())
    dist.barrier()
    dist.destroy_process_group()
    return found
