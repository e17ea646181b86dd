# SPDX-License-Identifier: Apache-2.0
"""Train a model that is cut into stages, in torch's pipeline engine."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist

from . import _abi, _stages_plan, _stages_probe
from ._stages_plan import Plan
from ._stages_probe import Layer, Layers, invalid
from ._stages_run import Loss, Piece, Run, Value, tensors

_BOUNDARIES = {"float32": None, "bfloat16": torch.bfloat16}


def pipeline(
    layers: Union[torch.nn.Sequential, Sequence[Layer]],
    loss: Loss,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    example: tuple[Value, torch.Tensor],
    micro_batches: int,
    *,
    boundary: str = "float32",
    plan: Any = None,
    seed: int = 0,
    deadline: float = 300.0,
) -> Pipeline:
    """Cut a model into stages, one machine after another, and train it."""
    return Pipeline(layers, loss, optimizer, example, micro_batches, boundary, plan, seed, deadline)


class Pipeline:
    """A model in stages; made by :func:`msdu.pipeline`."""

    def __init__(
        self,
        layers: Any,
        loss: Loss,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        example: tuple[Value, torch.Tensor],
        micro_batches: int,
        boundary: str,
        plan: Any,
        seed: int,
        deadline: float,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise _abi.Error(
                _abi.ERR_STATE, "pipeline: call torch.distributed.init_process_group() before"
            )
        if boundary not in _BOUNDARIES:
            raise invalid(f"boundary: {boundary!r} is none of {', '.join(_BOUNDARIES)}")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._x, self._y = example
        self._count = len(tensors(self._x)[0])
        device = tensors(self._x)[0].device
        self._layers = Layers(layers, seed, device)
        self._loss = loss
        self._optimizer = optimizer
        self._boundary = _BOUNDARIES[boundary]
        self._timeout = datetime.timedelta(seconds=deadline)
        self._look = _stages_probe.look(self._layers, self._x, self._y, loss)
        self.plan: Plan = _stages_plan.read(plan)
        self.plan.check(len(self._layers), self.ranks)
        if self.plan.micro_batches != micro_batches:
            raise invalid(
                f"the plan has {self.plan.micro_batches} micro-batches, not {micro_batches}"
            )
        self._everyone = dist.new_group(timeout=self._timeout, backend="gloo")
        self._build()

    # --- stages ---

    def _build(self) -> None:
        plan = self.plan
        group = dist.new_group(plan.devices, timeout=self._timeout)
        self.modules: dict[int, torch.nn.Module] = {}  # by layer
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        pieces: dict[int, Piece] = {}
        for number in plan.of(self.rank):
            stage = plan.stages[number]
            for layer in range(stage.first, stage.end):
                module = self.modules[layer] = self._layers.build(layer)
                trained = [p for p in module.parameters() if p.requires_grad]
                if trained:
                    self.optimizers[layer] = self._optimizer(trained)
            own = {layer: self.modules[layer] for layer in range(stage.first, stage.end)}
            pieces[number] = Piece(own, self._look.between, self._boundary)
        self._run = Run(plan, self.rank, pieces, self._loss, group) if pieces else None
        self._last = plan.stages[-1].device

    # --- steps ---

    def step(self, x: Value, y: torch.Tensor) -> float:
        """Forward and backward passes of all micro-batches, and the optimizers' step.

        Every rank calls it.

        Args:
            x: inputs, read where the first stage is.
            y: targets, read where the last stage is.

        Returns:
            The mean loss, on all ranks.
        """
        loss = self.backward(x, y)
        self.update()
        return loss

    def backward(self, x: Value, y: torch.Tensor) -> float:
        """The first half of step(): gradients."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        found = None
        if self._run is not None:
            found = self._run.gradients(x, y)
        value = torch.zeros((), dtype=torch.float64)
        if found is not None:
            value.copy_(found)
        dist.broadcast(value, self._last, group=self._everyone)
        return float(value)

    def update(self) -> None:
        """The second half of step(): the optimizers."""
        for optimizer in self.optimizers.values():
            optimizer.step()
