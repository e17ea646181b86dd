# SPDX-License-Identifier: Apache-2.0
"""The layers of a model, built one at a time: what they are like, and how long they take here."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist

from . import _abi, _stages_passes
from ._stages_ranks import Ranks
from ._stages_run import Forms, Value, forms, fresh, tensors, words

_LINK_BYTES = 1 << 20
_ROUND_TRIPS = 3

Layer = Union[torch.nn.Module, Callable[[], torch.nn.Module]]


def invalid(text: str) -> _abi.Error:
    """An error of the caller."""
    return _abi.Error(_abi.ERR_INVALID, f"pipeline: {text}")


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers inside depend on the seed alone, and those outside on nothing inside."""
    with torch.random.fork_rng(_gpus(device)):
        torch.manual_seed(seed)
        yield


class Layers:
    """A model as a chain of layers.

    Args:
        given: an nn.Sequential, or layers, each a module or a function that makes one.
        seed: layer i is made under seed + i, so its values depend on no cut.
        device: of parameters.
    """

    def __init__(
        self, given: Union[torch.nn.Sequential, Sequence[Layer]], seed: int, device: torch.device
    ) -> None:
        self._given = list(given)
        self._seed = seed
        self._device = device
        if not self._given:
            raise invalid("there is no layer")
        for number, layer in enumerate(self._given):
            if not callable(layer):
                kind = type(layer).__name__
                raise invalid(f"layer {number} is a {kind}, no module and no function of one")

    def __len__(self) -> int:
        return len(self._given)

    def build(self, number: int) -> torch.nn.Module:
        """A layer to be trained: the caller's own, if it gave a module."""
        given = self._given[number]
        if isinstance(given, torch.nn.Module):
            return given.to(self._device)
        with _seeded(self._seed + number, self._device):
            made = given()
        if not isinstance(made, torch.nn.Module):
            raise invalid(f"layer {number} is a {type(made).__name__}, not a torch.nn.Module")
        return made.to(self._device)

    def look(self, number: int) -> torch.nn.Module:
        """A layer to try: what is done to it has no consequences."""
        made = self.build(number)
        return copy.deepcopy(made) if made is self._given[number] else made

    def refuse_tied(self, number: int, layer: torch.nn.Module, known: dict[int, Any]) -> None:
        """Parameters that an earlier layer has, too.

        Args:
            known: what earlier calls saw; a parameter that is gone may have left its address.
        """
        given = self._given[number]
        for name, param in (
            given if isinstance(given, torch.nn.Module) else layer
        ).named_parameters():
            other, reference = known.get(id(param), (number, None))
            if other != number and reference() is param:
                raise invalid(
                    f"layer {number} shares its parameter '{name}' with layer {other}: tied "
                    "weights cannot be cut"
                )
            known[id(param)] = (number, weakref.ref(param))


@dataclasses.dataclass
class Look:
    """What layers are like, for one micro-batch.

    Attributes:
        between: forms of what enters each layer, and of what the last one gives.
        names: of layers, for messages.
        trained: by layer, how many trained parameters.
        in_place: layers that write over their input.
        kept_bytes, state_bytes: by layer: what it keeps for its backward pass, and has in
            parameters, buffers, gradients and optimizer states.
        forward_ns, backward_ns: by layer, on this device; means. 0 where nothing was timed.
    """

    between: list[Forms] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    trained: list[int] = dataclasses.field(default_factory=list)
    in_place: set[int] = dataclasses.field(default_factory=set)
    kept_bytes: list[float] = dataclasses.field(default_factory=list)
    state_bytes: list[float] = dataclasses.field(default_factory=list)
    forward_ns: list[float] = dataclasses.field(default_factory=list)
    backward_ns: list[float] = dataclasses.field(default_factory=list)


def look(
    layers: Layers,
    example: tuple[Value, torch.Tensor],
    loss: Callable[..., Any],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    is_timed: bool,
) -> Look:
    """Run a micro-batch through all layers, one at a time.

    Args:
        is_timed: measure, which takes 0.15 s a layer, and 0.75 s under a quota of the processor;
            for all layers some 30 s, and four passes of each in any case.

    Raises:
        msdu.Error: MSDU_ERR_INVALID with the layer that does not take what the one before gives,
            or shares a parameter.
    """
    found = Look()
    known: dict[int, Any] = {}
    value, y = example
    with torch.random.fork_rng(_gpus(tensors(value)[0].device)), torch.enable_grad():
        for number in range(len(layers)):
            layer = layers.look(number)
            layers.refuse_tied(number, layer, known)
            trained = [p for p in layer.parameters() if p.requires_grad]
            found.between.append(_forms(number, value))
            found.names.append(f"{number} ({type(layer).__name__})")
            found.trained.append(len(trained))
            is_last = number == len(layers) - 1
            value = _try(
                found, layers, number, layer, value, (loss, y) if is_last else None, is_timed
            )
            found.state_bytes.append(_state_bytes(layer, trained, optimizer))
        found.between.append(_forms(len(layers), value))
    return found


def _try(
    found: Look,
    layers: Layers,
    number: int,
    layer: torch.nn.Module,
    value: Value,
    end: Optional[tuple[Callable[..., Any], torch.Tensor]],
    is_timed: bool,
) -> Value:
    """Pass a value through a layer; the last one counts the loss as its own."""
    given = tuple(
        one.detach().requires_grad_(one.is_floating_point() and number > 0)
        for one in tensors(value)
    )
    given_value: Value = given if isinstance(value, tuple) else given[0]
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        taken = fresh(given_value)
        made = run(layers, number, layer, taken)
        _forms(number + 1, made)
        if end is not None:
            _apply(end, made)
    if any(one._version for one in tensors(taken)):
        found.in_place.add(number)
    for param in layer.parameters():
        kept.pop(param.untyped_storage().data_ptr(), None)

    def once() -> _stages_passes.Pass:
        taken = fresh(given_value)
        begin = _now(given[0].device)
        again = run(layers, number, layer, taken)
        ends = tensors(again) if end is None else (_apply(end, again),)
        middle = _now(given[0].device)
        ends = tuple(one for one in ends if one.requires_grad)
        if ends:
            torch.autograd.backward(ends, tuple(map(torch.ones_like, ends)))
        return middle - begin, _now(given[0].device) - middle

    forward_s, backward_s = (
        _stages_passes.repeated(once, len(layers)) if is_timed else (0.0, 0.0)
    )
    found.kept_bytes.append(float(sum(kept.values())))
    found.forward_ns.append(1e9 * forward_s)
    found.backward_ns.append(1e9 * backward_s)
    return tuple(one.detach() for one in made) if isinstance(made, tuple) else made.detach()


def _apply(end: tuple[Callable[..., Any], torch.Tensor], made: Value) -> torch.Tensor:
    loss, y = end
    try:
        found = loss(made, y)
    except Exception as problem:
        text = f"the loss does not take what the last layer gives, {words(forms(made))}"
        raise invalid(f"{text}: {_line(problem)}") from problem
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise invalid("the loss is not one number: it is the mean over a micro-batch")
    return found


def _state_bytes(
    layer: torch.nn.Module,
    trained: Sequence[torch.Tensor],
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> float:
    """Parameters, buffers, gradients, and what an optimizer makes in its first step."""
    total = _bytes([*layer.parameters(), *layer.buffers()])
    if not trained:
        return total
    made = optimizer(trained)
    for param in trained:
        param.grad = torch.zeros_like(param)
    made.step()
    states = [one for state in made.state.values() for one in state.values()]
    return total + _bytes(trained) + _bytes([s for s in states if isinstance(s, torch.Tensor)])


def _bytes(of: Sequence[torch.Tensor]) -> float:
    return float(sum(one.numel() * one.element_size() for one in of))


def _gpus(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def links(ranks: Ranks, device: torch.device, group: Any) -> tuple[list[float], list[float]]:
    """Rates in bytes a second and latencies in ns from this device to the others of its replica.
    All ranks call it; pairs that share no device measure at the same time."""
    count = ranks.devices
    rates, latencies = [math.inf] * count, [0.0] * count
    seats = list(range(count)) + [-1] * (count % 2)  # a round-robin tournament
    for _ in range(len(seats) - 1):
        for a, b in zip(seats[: len(seats) // 2], reversed(seats)):
            if ranks.device in (a, b) and min(a, b) >= 0:
                other = a + b - ranks.device
                is_first = ranks.device < other
                with ranks.blaming(ranks.of(other)):
                    peer = ranks.of(other)
                    short = _round_trip(peer, is_first, 1, device, group)
                    long = _round_trip(peer, is_first, _LINK_BYTES, device, group)
                latencies[other] = 1e9 * short / 2
                rates[other] = _LINK_BYTES / max((long - short) / 2, 1e-9)
        seats.insert(1, seats.pop())
    return rates, latencies


def _round_trip(peer: int, is_first: bool, count: int, device: torch.device, group: Any) -> float:
    """Seconds, the best of a few."""
    data = torch.zeros(count, dtype=torch.uint8, device=device)
    best = math.inf
    for _ in range(_ROUND_TRIPS):
        begin = _now(device)
        if is_first:
            dist.send(data, peer, group=group)
            dist.recv(data, peer, group=group)
        else:
            dist.recv(data, peer, group=group)
            dist.send(data, peer, group=group)
        best = min(best, _now(device) - begin)
    return best


def run(layers: Layers, number: int, layer: torch.nn.Module, value: Value) -> Value:
    """A layer's forward pass, its failure said in terms of the chain."""
    try:
        return layer(*value) if isinstance(value, tuple) else layer(value)
    except Exception as problem:
        before = f"layer {number - 1} gives" if number else "the example has"
        kind = type(layer).__name__
        raise invalid(
            f"layer {number} ({kind}) does not take what {before}, {words(forms(value))}: "
            f"{_line(problem)}. Each layer takes what the one before gives, and nothing else"
        ) from problem


def _forms(number: int, value: Value) -> Forms:
    try:
        return forms(value)
    except TypeError as problem:
        what = f"layer {number - 1} gives" if number else "the example's inputs are"
        raise invalid(f"{what} something else than tensors: {problem}") from problem


def _line(problem: BaseException) -> str:
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__
