# SPDX-License-Identifier: Apache-2.0
"""Layers that this rank has, with what belongs to each: one optimizer a layer, so that a layer can
travel, and a checkpoint fits any cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

import torch

from ._stages_probe import Layers, invalid

FORMAT = 1  # of a state

Factory = Callable[[Any], torch.optim.Optimizer]


class Held:
    """By number of the layer in the model.

    Args:
        layers: of the model.
        optimizer: makes one for a layer's trained parameters.
        schedule: makes a learning rate schedule for an optimizer; None: there is none.
    """

    def __init__(
        self, layers: Layers, optimizer: Factory, schedule: Optional[Callable[[Any], Any]]
    ) -> None:
        self.modules: dict[int, torch.nn.Module] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.schedules: dict[int, Any] = {}
        self._layers = layers
        self._optimizer = optimizer
        self._schedule = schedule

    def take(self, number: int) -> torch.nn.Module:
        """A layer, made now if it is not here yet."""
        if number not in self.modules:
            module = self.modules[number] = self._layers.build(number)
            trained = trained_of(module)
            if trained:
                optimizer = self.optimizers[number] = self._optimizer(trained)
                if self._schedule is not None:
                    self.schedules[number] = self._schedule(optimizer)
        return self.modules[number]

    def drop(self, number: int) -> None:
        """A layer that another rank has now."""
        for own in (self.modules, self.optimizers, self.schedules):
            own.pop(number, None)

    def zero_grad(self) -> None:
        """Before a step."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Optimizers, then their schedules."""
        for number, optimizer in self.optimizers.items():
            optimizer.step()
            if number in self.schedules:
                self.schedules[number].step()

    def pack(self, number: int) -> dict[str, Any]:
        """All that belongs to a layer, as torch.save() writes it."""
        optimizer, schedule = self.optimizers.get(number), self.schedules.get(number)
        return {
            "model": self.modules[number].state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "schedule": None if schedule is None else schedule.state_dict(),
        }

    def unpack(self, number: int, packed: Mapping[str, Any]) -> None:
        """A layer as it was packed, here or elsewhere."""
        self.take(number).load_state_dict(packed["model"])
        for part, own in (("optimizer", self.optimizers), ("schedule", self.schedules)):
            if number in own and packed[part] is not None:
                own[number].load_state_dict(packed[part])

    def load(self, state: Mapping[str, Any]) -> None:
        """This rank's layers from a state of :func:`state_of`.

        Raises:
            msdu.Error: another number of layers, or one of this rank's is missing.
        """
        count = len(self._layers)
        if state.get("format") != FORMAT or state.get("layers") != count:
            raise invalid(
                f"state of format {state.get('format')} and {state.get('layers')} layers, not "
                f"{FORMAT} and {count}"
            )
        for number in self.modules:
            if number not in state["optimizer"]:
                raise invalid(f"the state has no layer {number}")
        for number in self.modules:
            model = {
                name.partition(".")[2]: value
                for name, value in state["model"].items()
                if name.partition(".")[0] == str(number)
            }
            parts = {part: state[part][number] for part in ("optimizer", "schedule")}
            self.unpack(number, {"model": model, **parts})


def trained_of(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Parameters that an optimizer has."""
    return [param for param in module.parameters() if param.requires_grad]


def state_of(packed: Mapping[int, Any], layers: int, steps: int) -> dict[str, Any]:
    """Packed layers as one state; ``"model"`` is what an nn.Sequential of all of them loads."""
    numbers = sorted(packed)
    return {
        "format": FORMAT,
        "layers": layers,
        "steps": steps,
        "model": {f"{n}.{k}": v for n in numbers for k, v in packed[n]["model"].items()},
        "optimizer": {n: packed[n]["optimizer"] for n in numbers},
        "schedule": {n: packed[n]["schedule"] for n in numbers},
    }
