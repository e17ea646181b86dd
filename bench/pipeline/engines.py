# SPDX-License-Identifier: Apache-2.0
"""A method's schedule on this rank: torch's classes, or a plan in torch's engine by the package."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from msdu import _stages_engine, _stages_plan, _stages_run
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from . import cases
from .orders import Way

Loss = Callable[[Tensor, Tensor], Tensor]
_SINGLE = {"1f1b": schedules.Schedule1F1B, "gpipe": schedules.ScheduleGPipe}
_MULTI = {"interleaved": schedules.ScheduleInterleaved1F1B,
          "zbv": schedules.ScheduleZBVZeroBubble}


class Engine:
    """A method on this rank, which may have no stage in it.

    Args:
        way: of the method.
        layers: makes a layer by its number.
        forms: of what enters each layer, and leaves the last, in a micro-batch.
        loss: of a micro-batch.
        row: of this rank; None: none.
        group: its ranks in the order of rows.
        wrap: of a stage's module, such as DDP.
    """

    def __init__(self, way: Way, layers: Callable[[int], nn.Module],
                 forms: list[_stages_run.Forms], loss: Loss, row: int | None, group: Any,
                 wrap: Callable[[nn.Module], nn.Module] | None = None) -> None:
        self.way = way
        self._run: _stages_run.Run | None = None
        ends = way.ends()
        mine = [i for i, at in enumerate(way.rows) if at == row]
        self.pieces: Mapping[int, _stages_run.Piece] = {
            i: _stages_run.Piece({n: layers(n) for n in range(*ends[i])}, forms, None)
            for i in mine}
        self._is_first, self._is_last = 0 in mine, len(ends) - 1 in mine
        if not mine:
            return
        if way.schedule == "plan":
            plan = _stages_plan.read(way.plan)
            place = torch.device("cpu")
            self._run = _stages_run.Run(plan, row, self.pieces, loss, place, group)
            return
        stages = [self._stage(i, piece, group, wrap) for i, piece in self.pieces.items()]
        count = way.micro_batches

        def mean(made: Tensor, target: Tensor) -> Tensor:
            return loss(made, target) / count

        if way.schedule == "rows":
            rows = [cases.order_1f1b(i, len(ends), count) for i in range(len(ends))]
            self._torch = _stages_engine.engine(stages, count, mean, rows, False)
        elif way.schedule in _SINGLE:
            self._torch = _SINGLE[way.schedule](stages[0], count, loss_fn=mean, scale_grads=False)
        else:
            self._torch = _MULTI[way.schedule](stages, count, loss_fn=mean, scale_grads=False)

    def _stage(self, number: int, piece: _stages_run.Piece, group: Any,
               wrap: Callable[[nn.Module], nn.Module] | None) -> PipelineStage:
        given, made = piece.ends()
        return PipelineStage(piece if wrap is None else wrap(piece), number, len(self.way.counts),
                             torch.device("cpu"), group=group, input_args=tuple(given),
                             output_args=tuple(made))

    def gradients(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Of a step; the mean loss on the last stage's rank."""
        if not self.pieces:
            return None
        if self._run is not None:
            return self._run.gradients(x, y)
        losses: list[Tensor] = []
        given = (x,) if self._is_first else ()
        target = {"target": y} if self._is_last else {}
        self._torch.step(*given, **target, losses=losses, return_outputs=False)
        if not self._is_last:
            return None
        total = losses[0].detach().clone()
        for one in losses[1:]:
            total += one.detach()
        return total


def group_of(machines: list[int]) -> Any:
    """A group whose ranks are in the order of a pipeline. All ranks of the job call it."""
    return dist.new_group(machines, sort_ranks=False)
