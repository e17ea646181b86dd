# SPDX-License-Identifier: Apache-2.0
"""The layers of a model, built one at a time: what they are like, and how long they take here."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, Union

import torch

from . import _abi
from ._stages_run import Forms, Value, forms, words

Layer = Union[torch.nn.Module, Callable[[], torch.nn.Module]]


def invalid(text: str) -> _abi.Error:
    """An error of the caller."""
    return _abi.Error(_abi.ERR_INVALID, f"pipeline: {text}")


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers inside depend on the seed alone, and those outside on nothing inside."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
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
        for name, param in (given if isinstance(given, torch.nn.Module) else layer).named_parameters():
            other, reference = known.get(id(param), (number, None))
            if other != number and reference() is param:
                raise invalid(
                    f"layer {number} shares its parameter '{name}' with layer {other}: tied "
                    "weights cannot be cut"
                )
            known[id(param)] = (number, weakref.ref(param))


@dataclasses.dataclass
class Look:
    """What layers are like.

    Attributes:
        between: forms of what enters each layer, and of what the last one gives.
        trained: by layer, how many trained parameters.
    """

    between: list[Forms]
    trained: list[int]


def look(layers: Layers, x: Value, y: torch.Tensor, loss: Callable[..., Any]) -> Look:
    """Run a micro-batch through all layers, one at a time.

    Raises:
        msdu.Error: MSDU_ERR_INVALID with the layer that does not take what the one before gives,
            or shares a parameter.
    """
    found = Look([], [])
    known: dict[int, Any] = {}
    with torch.no_grad():
        value = x
        for number in range(len(layers)):
            layer = layers.look(number)
            layers.refuse_tied(number, layer, known)
            found.between.append(_forms(number, value))
            found.trained.append(sum(p.requires_grad for p in layer.parameters()))
            value = run(layers, number, layer, value)
        found.between.append(_forms(len(layers), value))
        try:
            made = loss(value, y)
        except Exception as problem:
            text = f"the loss does not take what the last layer gives, {words(found.between[-1])}"
            raise invalid(f"{text}: {_line(problem)}") from problem
        if not isinstance(made, torch.Tensor) or made.numel() != 1:
            raise invalid("the loss is not one number: it is the mean over a micro-batch")
    return found


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
