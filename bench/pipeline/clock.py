# SPDX-License-Identifier: Apache-2.0
"""Layers that compute by the clock, and torch's pipeline stages that open it.

A stage's layers end at absolute times, however late the kernel wakes the process: the time that a
layer oversleeps is taken from the next one. So is what the engine does between two actions, up to
SLACK_S, as a device with a queue of its own hides it. A longer gap is waiting and stays one.
"""
from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

SLACK_S = 0.5e-3


class Clock:
    """A device, which computes one thing at a time."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.slack_s = SLACK_S
        self._free = 0.0
        self._is_opened = True

    def open(self) -> None:
        """An action begins."""
        self._is_opened = True

    def spend(self, seconds: float) -> None:
        """Compute for so long at speed 1."""
        now = time.monotonic()
        if self._is_opened and now - self._free > self.slack_s:
            self._free = now
        self._is_opened = False
        self._free += seconds / self.speed
        if self._free > now:
            time.sleep(self._free - now)


class _Pass(torch.autograd.Function):
    """Hands its input on, and takes time for it both ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, forward_s: float, backward_s: float) -> Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.spend(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        ctx.clock.spend(ctx.backward_s)
        return grad, None, None, None


class ClockLayer(nn.Module):
    """x + weight, by the clock; times are of a sample. Half of the backward pass is the weight's,
    in a node of its own, so that a split one takes each half where it belongs."""

    def __init__(self, number: int, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.01 * (number + 1)]))
        self._clock, self._forward_s, self._backward_s = clock, forward_s, backward_s

    def forward(self, x: Tensor) -> Tensor:
        half = self._backward_s / 2 * len(x)
        weight = _Pass.apply(self.weight, self._clock, 0.0, half)
        given = x
        if x.requires_grad:
            given = _Pass.apply(x, self._clock, self._forward_s * len(x), half)
        else:  # the first layer: nobody wants its input's gradient, but it takes its time
            self._clock.spend(self._forward_s * len(x))
            weight = _Pass.apply(weight, self._clock, 0.0, half)
        return given + weight


@dataclasses.dataclass
class Journal:
    """What a rank's stages did, and when; emptied by who reads it."""

    actions: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def note(self, kind: str, stage: int, micro_batch: int, begin: float, end: float) -> None:
        """An action, by time.monotonic()."""
        self.actions.append({"kind": kind, "stage": stage, "micro_batch": micro_batch,
                             "begin": begin, "end": end})


def _kind(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Of a stage's method: F, B, I or W, as torch writes them."""
    if name == "forward_one_chunk":
        return "F"
    if name == "backward_weight_one_chunk":
        return "W"
    is_whole = options.get("full_backward", args[2] if len(args) > 2 else True)
    return "B" if is_whole else "I"


def open_in_stages(clock: Clock, journal: Journal) -> None:
    """From now on every action of a pipeline stage of this process opens the clock."""
    for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
        plain = getattr(PipelineStage, name)

        @functools.wraps(plain)
        def opened(self: Any, *args: Any, plain: Any = plain, name: str = name, **options: Any
                   ) -> Any:
            clock.open()
            begin = time.monotonic()
            made = plain(self, *args, **options)
            chunk = args[0] if args else next(v for k, v in options.items() if "chunk" in k)
            journal.note(_kind(name, args, options), self.stage_index, chunk, begin,
                         time.monotonic())
            return made

        setattr(PipelineStage, name, opened)
