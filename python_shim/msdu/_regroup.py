# SPDX-License-Identifier: Apache-2.0
"""After ranks were lost or joined (setting ``ranks_least``): what all take from rank 0 beside the
parameters, which the library sees to."""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from . import _abi
from ._context import Context


class Stateful(Protocol):
    """An optimizer, a schedule, a sampler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


def is_wanted(settings: Mapping[str, Any]) -> bool:
    """May ranks come and go?"""
    wanted = os.environ.get("MSDU_RANKS_LEAST") or settings.get("ranks_least")
    return str(wanted or 0) != "0"


def refuse(settings: Mapping[str, Any], what: str) -> None:
    """Trainers that cannot follow a group that changes, before anything is sent."""
    if is_wanted(settings):
        raise _abi.Error(
            _abi.ERR_UNSUPPORTED,
            f"setting ranks_least: {what} cannot follow ranks that come and go: its loop counts on "
            "one process group. msdu.attach() in a loop of your own can",
        )


def share(context: Context, value: Any) -> Any:
    """What rank 0 gives, as ``torch.save()`` writes it, tensors on the host. None where the group
    changed again meanwhile: ``context.has_regrouped``. All ranks call it, between steps."""
    data = bytearray()
    if context.summary().rank == 0:
        file = io.BytesIO()
        torch.save(value, file)
        data = bytearray(file.getbuffer())
    size = ctypes.c_uint64(len(data))
    context.call(context.lib.share, ctypes.byref(size), ctypes.sizeof(size))
    if context.has_regrouped:
        return None
    data = data or bytearray(size.value)
    place = (ctypes.c_char * size.value).from_buffer(data)
    context.call(context.lib.share, place, size.value)
    if context.has_regrouped:
        return None
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class Options:
    """What schedules write into the optimizers, beside their own states."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers

    def state_dict(self) -> list[list[dict[str, Any]]]:
        return [
            [{k: v for k, v in group.items() if k != "params"} for group in one.param_groups]
            for one in self._optimizers
        ]

    def load_state_dict(self, state: list[list[dict[str, Any]]]) -> None:
        for one, groups in zip(self._optimizers, state):
            for group, options in zip(one.param_groups, groups):
                group.update(options)


class Kept:
    """What is equal on all ranks and in nobody's parameters.

    Optimizers follow at once, since they belong to the parameters. The trainer's objects follow as
    the next backward pass begins: ranks leave a group at different points of their loops, and there
    all of them have counted what came before.

    Attributes:
        objects: of the trainer's, beside the optimizers.
        is_awaited: this rank has joined, and the others wait for it to take their objects' states.
    """

    def __init__(self, context: Context, optimizers: Sequence[Stateful]) -> None:
        self._context = context
        self._optimizers = optimizers
        self.objects: list[Stateful] = []
        self.is_awaited = False
        self._are_due = False

    def follow(self) -> None:
        """Optimizers take the states that rank 0 has where a rank needs them; the group may change
        again meanwhile."""
        context = self._context
        while context.has_regrouped:
            context.has_regrouped = False
            summary = context.summary()
            if summary.has_given:
                self._take(self._optimizers, bool(summary.was_given))
            self._are_due = bool(self.objects)
            if not self._are_due:
                self._done()

    def begin(self) -> bool:
        """A backward pass begins. Did the group change again meanwhile?"""
        has_changed = False
        while self._are_due:
            self._are_due = False
            self._take([Options(self._optimizers), *self.objects], True)
            self._done()
            has_changed = has_changed or self._context.has_regrouped
            self.follow()
        return has_changed

    def keep(self, objects: Sequence[Stateful]) -> bool:
        """From here on their states are rank 0's wherever the group changes; this rank's are at
        once, if it has just joined. Did the group change again meanwhile?"""
        self.objects += objects
        if self.is_awaited and objects:
            self.is_awaited = False
            self._are_due = True
        return self.begin()

    def _done(self) -> None:
        if not self._context.has_regrouped and not self.is_awaited:
            self._context.call(self._context.lib.share, None, 0)

    def _take(self, objects: Sequence[Stateful], takes: bool) -> None:
        if not objects or self._context.has_regrouped:
            return
        states = share(self._context, [one.state_dict() for one in objects])
        if not takes or self._context.has_regrouped:
            return
        if len(states) != len(objects):
            raise _abi.Error(
                _abi.ERR_MISMATCH,
                f"rank 0 keeps {len(states) - 1} objects equal on all ranks, this rank "
                f"{len(objects) - 1}",
            )
        for one, state in zip(objects, states):
            one.load_state_dict(state)
