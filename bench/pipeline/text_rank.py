# SPDX-License-Identifier: Apache-2.0
"""One rank of real training under shares of a core.

Torch's 1F1B with equal layers, msdu.pipeline(), and one process with the same micro-batches, whose
losses and parameters both must have.
"""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import msdu
import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import cases, engines, orders, text

Step = Callable[[Tensor, Tensor], "float | None"]
Layers = Callable[[], "dict[int, nn.Module]"]  # of this rank, when asked: they may move
Shown = Callable[[], "dict[str, Any]"]
Made = tuple[Step, Layers, Shown]


def by_hand(parts: list[nn.Module], gradients: Callable[[Tensor, Tensor], Tensor | None]) -> Step:
    """A step of what has no optimizer of its own; its loss where it is known."""
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = text.optimizer(parameters) if parameters else None

    def step(x: Tensor, y: Tensor) -> float | None:
        if optimizer is not None:
            optimizer.zero_grad()
        loss = gradients(x, y)
        if optimizer is not None:
            optimizer.step()
        return None if loss is None else float(loss)

    return step


def _torch(size: text.Size) -> Made:
    """Schedule1F1B with equal layers."""
    ranks = list(range(dist.get_world_size()))
    counts = cases.equal_counts(size.layers, len(ranks))
    way = orders.of_torch("torch-1f1b", ranks, counts, "1f1b", size.micro_batches)
    assert way is not None
    engine = engines.Engine(way, lambda n: text.layer(size, n), size.forms(), text.loss,
                            dist.get_rank(), engines.group_of(ranks))
    pieces = list(engine.pieces.values())
    layers = {int(name): layer for piece in pieces for name, layer in piece.named_children()}
    shown = {"counts": counts, "machines": ranks, "predicted_s": None}
    return by_hand(pieces, engine.gradients), lambda: layers, lambda: shown


def _ours(size: text.Size, batches: text.Text) -> Made:
    """As a user has it: it measures, plans and runs, and moves layers where that pays."""
    pipe = msdu.pipeline(text.factories(size), text.loss, text.optimizer, batches.example(),
                         size.micro_batches, seed=size.seed)

    def shown() -> dict[str, Any]:
        plan = pipe.plan
        return {"counts": [stage.end - stage.first for stage in plan.stages],
                "machines": [stage.device for stage in plan.stages],
                "predicted_s": plan.step_ns / 1e9, "moves": pipe.moves}

    return pipe.step, lambda: dict(pipe.modules), shown


def _alone(size: text.Size) -> Made:
    """One process that adds up the gradients of the same micro-batches."""
    model = nn.Sequential(*[text.layer(size, i) for i in range(size.layers)])

    def gradients(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        parts = zip(x.chunk(size.micro_batches), y.chunk(size.micro_batches))
        for inputs, targets in parts:
            loss = text.loss(model(inputs), targets) / size.micro_batches
            loss.backward()
            total += loss.detach()
        return total

    layers = dict(enumerate(model.children()))
    shown = {"counts": [size.layers], "machines": [0], "predicted_s": None}
    return by_hand([model], gradients), lambda: layers, lambda: shown


def _digest(layers: dict[int, nn.Module]) -> str:
    """Of all parameters."""
    whole = hashlib.sha256()
    for _, layer in sorted(layers.items()):
        for value in layer.parameters():
            whole.update(value.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


def train(step: Step, steps: int, batch: Callable[[int], tuple[Tensor, Tensor]]
          ) -> tuple[list[float], list[float]]:
    """Seconds and losses of all steps; a rank that has no loss has none."""
    seconds, losses = [], []
    for number in range(steps):
        x, y = batch(number)
        begin = time.monotonic()
        loss = step(x, y)
        seconds.append(time.monotonic() - begin)
        if loss is not None:
            losses.append(loss)
    return seconds, losses


def last(seconds: list[float]) -> list[float]:
    """The last third: by then the library has looked once at what it chose."""
    return seconds[-max(1, len(seconds) // 3):]


def _run(name: str, made: Made, steps: int, batches: text.Text) -> dict[str, Any]:
    """A method from the start; its result on all ranks."""
    step, layers, shown = made
    dist.barrier()
    seconds, losses = train(step, steps, batches.batch)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (losses, seconds, layers()))
    whole = {number: layer for _, _, some in every for number, layer in some.items()}
    slowest = [max(times) for times in zip(*[seconds for _, seconds, _ in every])]
    return {"method": name, "seconds": last(slowest), **shown(), "digest": _digest(whole),
            "losses": next(losses for losses, _, _ in every if losses)}


def main(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Results by method, on rank 0, where the one process runs, too."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size, steps = text.Size(**task["size"]), int(task["steps"])
    batches = text.Text(size)
    found = [_run("torch-1f1b", _torch(size), steps, batches),
             _run("ours", _ours(size, batches), steps, batches)]
    if dist.get_rank() == 0:
        step, layers, shown = _alone(size)
        seconds, losses = train(step, steps, batches.batch)
        found.append({"method": "one process", "seconds": last(seconds), **shown(),
                      "losses": losses, "digest": _digest(layers())})
    dist.barrier()
    dist.destroy_process_group()
    return found
