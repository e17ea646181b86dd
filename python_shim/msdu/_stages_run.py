# SPDX-License-Identifier: Apache-2.0
"""A plan's stages on this rank, in torch's engine: micro-batches in, gradients and the loss out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from . import _abi, _stages_engine
from ._stages_plan import Plan

Value = Any  # what goes from layer to layer: a tensor, or a tuple of tensors
Loss = Callable[[Value, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Form:
    """What a tensor between two layers is like, always."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of one such tensor."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize

    def cast(self, dtype: Optional[torch.dtype]) -> Form:
        """The same in another type, if it is floating point at all."""
        is_cast = dtype is not None and self.dtype.is_floating_point
        return dataclasses.replace(self, dtype=dtype) if is_cast else self  # type: ignore[arg-type]

    def meta(self, is_input: bool) -> torch.Tensor:
        """For torch, which makes buffers like it. Inputs of the model need no gradient."""
        needs = self.dtype.is_floating_point and not is_input
        return torch.empty(self.shape, dtype=self.dtype, device="meta", requires_grad=needs)

    def __str__(self) -> str:
        return f"{list(self.shape)} {str(self.dtype).replace('torch.', '')}"


Forms = tuple[Form, ...]  # of a value


def tensors(value: Value) -> tuple[torch.Tensor, ...]:
    """Of a value, which is a tensor or a tuple of tensors.

    Raises:
        TypeError: it is neither.
    """
    found = (value,) if isinstance(value, torch.Tensor) else value
    if not isinstance(found, tuple) or not all(isinstance(one, torch.Tensor) for one in found):
        raise TypeError(f"a {type(value).__name__} is no tensor, and no tuple of tensors")
    return found


def forms(value: Value) -> Forms:
    """Of a value's tensors."""
    return tuple(Form(tuple(one.shape), one.dtype) for one in tensors(value))


def words(of: Forms) -> str:
    """For a message."""
    return ", ".join(map(str, of))


class Piece(torch.nn.Module):
    """A run of layers. Names are those of an nn.Sequential of the whole model.

    Args:
        layers: by number, in a row.
        between: forms of what enters each layer of the model, and of what the last one gives.
        boundary: type in which floating point values travel between stages; None: their own.
        in_place: layers that write over their input.
    """

    def __init__(
        self,
        layers: Mapping[int, torch.nn.Module],
        between: Sequence[Forms],
        boundary: Optional[torch.dtype],
        in_place: Collection[int] = (),
    ) -> None:
        super().__init__()
        for number in sorted(layers):
            self.add_module(str(number), layers[number])
        self._between = between
        self._first, self._end = min(layers), max(layers) + 1
        self._enters = None if self._first == 0 else boundary
        self._is_last = self._end == len(between) - 1
        self._leaves = None if self._is_last else boundary
        self._is_in_place = self._first in in_place

    def ends(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What enters and what leaves, for torch."""
        given, made = self._between[self._first], self._between[self._end]
        return (
            [one.cast(self._enters).meta(self._first == 0) for one in given],
            [one.cast(self._leaves).meta(False) for one in made],
        )

    def forward(self, *given: torch.Tensor) -> Value:
        """All layers, whose values must be like those of the example."""
        value: Value = given if len(given) > 1 else given[0]
        if self._enters is not None:
            value = _cast(value, self._between[self._first])
        if self._is_in_place:  # what torch received is a leaf, and another stage's output
            value = fresh(value)
        for number, layer in enumerate(self.children(), self._first):
            value = layer(*value) if isinstance(value, tuple) else layer(value)
            self._check(number, value)
        if self._leaves is not None:
            made = tuple(one.cast(self._leaves) for one in self._between[self._end])
            value = _cast(value, made)
        return value if self._is_last else _mapped(torch.Tensor.contiguous, value)

    def _check(self, number: int, value: Value) -> None:
        found, expected = forms(value), self._between[number + 1]
        if found != expected:
            layer = type(self.get_submodule(str(number))).__name__
            raise _abi.Error(
                _abi.ERR_INVALID,
                f"layer {number} ({layer}) gives {words(found)}, and gave {words(expected)} for "
                "the example: shapes between layers may not change",
            )


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Value) -> Value:
    return change(value) if isinstance(value, torch.Tensor) else tuple(map(change, value))


def _cast(value: Value, to: Forms) -> Value:
    types = iter(to)
    return _mapped(lambda one: one.to(next(types).dtype), value)


def fresh(value: Value) -> Value:
    """A copy that may be written over."""
    return _mapped(torch.clone, value)


class LostError(Exception):
    """A message between two devices failed.

    Attributes:
        device: the other one.
        problem: what torch raised.
    """

    def __init__(self, device: int, problem: Exception) -> None:
        super().__init__(str(problem))
        self.device = device
        self.problem = problem


@contextmanager
def _losing(device: int) -> Iterator[None]:
    """Messages from or to a device."""
    try:
        yield
    except RuntimeError as problem:
        raise LostError(device, problem) from problem


class _Clock:
    """Time inside, and what was raised there: by computing, since messages are outside."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.problem: Optional[BaseException] = None

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, kind: Any, problem: Optional[BaseException], trace: Any) -> None:
        self.seconds += time.perf_counter() - self._begin
        if problem is not None and self.problem is None:
            self.problem = problem


class _Stage(_stages_engine.Stage):  # type: ignore[misc]
    """A stage with clocks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.forward_clock, self.backward_clock = _Clock(), _Clock()

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.forward_clock:
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.backward_clock:
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.backward_clock:
            return super().backward_weight_one_chunk(*args, **kwargs)


def receives_early(device: torch.device) -> bool:
    """Early receives move bytes soonest over Gloo, and block the stream of NCCL."""
    return device.type == "cpu"


class Run:
    """A plan on this rank.

    Args:
        plan: checked.
        device: of this rank in the plan; it must be in use.
        pieces: modules of its stages, by number of the stage.
        loss: of a micro-batch, its mean; gradients are those of the mean over micro-batches.
        place: where tensors are.
        group: of torch.distributed: the ranks of the devices in use, ascending. None: all ranks.

    Attributes:
        times: by stage, seconds of computing in the last step.
    """

    def __init__(
        self,
        plan: Plan,
        device: int,
        pieces: Mapping[int, Piece],
        loss: Loss,
        place: torch.device,
        group: Optional[Any] = None,
    ) -> None:
        self._place = place
        self._group = group
        self.plan = plan
        self.device = device
        self.times: dict[int, float] = {}
        self._stages = [self._stage(number, piece, group) for number, piece in pieces.items()]
        self._loss = loss
        self._loss_clock = _Clock()
        self._is_first = 0 in pieces
        self._is_last = len(plan.stages) - 1 in pieces
        is_early = receives_early(place)
        self._engine = _stages_engine.engine(
            self._stages,
            plan.micro_batches,
            self._mean,
            plan.rows_with_messages() if is_early else plan.rows(),
            is_early,
        )

    def _stage(self, number: int, piece: Piece, group: Optional[Any]) -> _Stage:
        given, made = piece.ends()
        ends = {"input_args": tuple(given), "output_args": tuple(made)}
        return _Stage(piece, number, len(self.plan.stages), self._place, group=group, **ends)

    def gradients(self, x: Value, y: torch.Tensor) -> Optional[torch.Tensor]:
        """Forward and backward passes of a step; gradients add up in ``.grad``.

        Args:
            x, y: the batch; read on the first and on the last stage.

        Returns:
            The mean loss, on the last stage's rank; None elsewhere.
        """
        clocks = [self._loss_clock, *(c for s in self._stages for c in _clocks(s))]
        for clock in clocks:
            clock.seconds = 0.0
        losses: list[torch.Tensor] = []
        given = tensors(x) if self._is_first else ()
        target = {"target": y} if self._is_last else {}
        try:
            self._engine.step(*given, **target, losses=losses, return_outputs=False)
        except Exception as problem:
            own = next((clock.problem for clock in clocks if clock.problem is not None), None)
            if own is not None and own is not self._loss_clock.problem:
                own = own.__cause__ or own  # the caller's; torch's own has the batch's values in it
            if own is not None:
                raise own from None
            raise LostError(self._peer(problem), problem) from problem
        self.times = {s.stage_index: sum(c.seconds for c in _clocks(s)) for s in self._stages}
        if self._is_last:
            self.times[len(self.plan.stages) - 1] += self._loss_clock.seconds
        return _sum(one.detach() for one in losses) if self._is_last else None

    def evaluate(self, x: Value, y: torch.Tensor, measure: Loss) -> Optional[float]:
        """Forward passes only, one micro-batch after another.

        Returns:
            The mean of a measure over micro-batches, on the last stage's rank; None elsewhere.
        """
        parts, stages = self.plan.micro_batches, self.plan.stages
        inputs = [one.chunk(parts) for one in tensors(x)]
        total = 0.0
        sends: list[tuple[int, Any]] = []
        for part, target in enumerate(y.chunk(parts)):
            value: Value = tuple(chunks[part] for chunks in inputs)
            for stage in self._stages:
                number = stage.stage_index
                if number and stages[number - 1].device != self.device:
                    value = self._received(stage, stages[number - 1].device)
                value = stage.submod(*tensors(value))
                if number + 1 == len(stages):
                    total += float(measure(value, target))
                elif stages[number + 1].device != self.device:
                    sends += self._sent(value, stages[number + 1].device)
        for device, work in sends:
            with _losing(device):
                work.wait()
        return total / parts if self._is_last else None

    def _received(self, stage: _Stage, device: int) -> Value:
        """What the stage before gives."""
        peer = self.plan.devices.index(device)
        given, _ = stage.submod.ends()
        found = tuple(torch.empty_like(one, device=self._place) for one in given)
        with _losing(device):
            for one in found:
                dist.recv(one, group=self._group, group_src=peer)
        return found

    def _sent(self, value: Value, device: int) -> list[tuple[int, Any]]:
        peer = self.plan.devices.index(device)
        with _losing(device):
            return [
                (device, dist.isend(one, group=self._group, group_dst=peer))
                for one in tensors(value)
            ]

    def _mean(self, made: Value, target: torch.Tensor) -> torch.Tensor:
        with self._loss_clock:
            return self._loss(made, target) / self.plan.micro_batches

    def _peer(self, problem: Exception) -> int:
        """The device that a failed message was from or to."""
        stages = self.plan.stages
        number, kind = _stages_engine.failed_at(problem) or (self._stages[0].stage_index, "")
        other = number + (1 if kind in ("B", "I", "RECV_B", "SEND_F") else -1)
        if not 0 <= other < len(stages):
            other = number + 1 if other < 0 else number - 1
        return stages[min(max(other, 0), len(stages) - 1)].device


def _clocks(stage: _Stage) -> tuple[_Clock, _Clock]:
    return stage.forward_clock, stage.backward_clock


def _sum(losses: Iterable[torch.Tensor]) -> Optional[torch.Tensor]:
    total = None
    for one in losses:
        total = one.clone() if total is None else total.add_(one)
    return total
