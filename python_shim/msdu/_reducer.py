# SPDX-License-Identifier: Apache-2.0
"""In the place of torch's reducer, for a DistributedDataParallel that is attached.

Torch decides in the forward pass whether the next backward pass is reduced: its wrapper, or a
trainer in its place (Lightning, accelerate), *arms* the reducer by ``prepare_for_backward()``. A
reduction disarms it. The library follows the same rule, so one of the two reduces, never both.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from . import _tensors
from ._gradients import EXCHANGE, Gradients


class Armed(Gradients):
    """Gradients of those wrapped models whose reducer is armed; all others are left alone.

    Attributes:
        armed: the parts (numbers of wrapped models) that the next backward pass reduces.
        over: those that the pass reduced which ends now.
    """

    def _listen(self) -> list[Any]:
        self.armed: set[int] = set()
        self.over: set[int] = set()
        return [self._listen_to(index, slot) for index, slot in enumerate(self._slots)]

    def _listen_to(self, index: int, slot: _tensors.Slot) -> Any:
        is_frozen = not slot.param.requires_grad  # for now: it was trained when it was wrapped
        slot.param.requires_grad_(True)
        try:
            return slot.param.register_post_accumulate_grad_hook(self._hook(index, slot))
        finally:
            slot.param.requires_grad_(not is_frozen)

    def _hook(self, index: int, slot: _tensors.Slot) -> Callable[[torch.Tensor], None]:
        on_gradient = super()._hook(index, slot)
        part = slot.part

        def on_armed(param: torch.Tensor) -> None:
            if part in self.armed:
                on_gradient(param)

        return on_armed

    def end(self) -> None:
        """As torch's: a model is disarmed by a pass that gave it gradients."""
        if not self.is_begun:
            return
        self.over = set(self.armed)
        if self.mode == EXCHANGE:
            self.over = {slot.part for index, slot in enumerate(self._slots) if self.fired[index]}
        super().end()
        self.armed -= self.over

    def _announce_missing(self) -> list[tuple[int, torch.Tensor]]:
        for index, slot in enumerate(self._slots):
            if slot.part not in self.armed:
                self.fired[index] = 1  # takes part with zeros; its gradient stays as it is
                self._hand_over(slot, self._reserve.zeros(index, slot))
        return super()._announce_missing()


class Reducer:
    """What a wrapper finds under ``reducer``; what it does not know is the original's.

    Args:
        original: torch's, whose hooks on gradients are taken off.
        arm: the next backward pass is to be reduced.
    """

    def __init__(self, original: Any, arm: Callable[[], None]) -> None:
        self._original = original
        self._arm = arm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def prepare_for_backward(self, outputs: Any = ()) -> None:
        """The next backward pass is to be reduced."""
        self._arm()

    def prepare_for_forward(self) -> None:
        """Nothing to prepare."""

    def _rebuild_buckets(self) -> bool:
        return False  # there are none

    def _push_all_rebuilt_params(self) -> None:
        """No buckets either."""

    def _delay_all_reduce(self) -> None:
        """The end of a static graph's first backward pass."""

    def _check_reducer_finalized(self) -> None:
        """Nothing is open once backward() has returned."""


def take_over(model: TorchDDP, arm: Callable[[], None]) -> None:
    """Take torch's reducer off this model's gradients for good."""
    model.reducer._remove_autograd_hooks()
    object.__setattr__(model, "reducer", Reducer(model.reducer, arm))


def syncs_buffers(model: TorchDDP) -> bool:
    """Did the script ask for buffers as rank 0 has them (DDP's default)?"""
    newer = getattr(model, "forward_sync_buffers", None)  # torch 2.13
    return bool(model.broadcast_buffers if newer is None else newer)


def before_forward(model: TorchDDP, has_own_buffers: bool) -> None:
    """What the wrapper's forward does before the module's, but for the reducer's part.

    Args:
        has_own_buffers: DDP's own broadcast of buffers; False: the library has them.
    """
    if has_own_buffers and model._check_sync_bufs_pre_fwd():
        model._sync_buffers()


def after_forward(model: TorchDDP) -> None:
    """What the wrapper's forward does after the module's."""
    is_armed = torch.is_grad_enabled() and model.require_backward_grad_sync
    model.require_forward_param_sync = is_armed
    if is_armed:
        model.reducer.prepare_for_backward([])


def sync_buffers_from_last(model: TorchDDP, is_last: bool) -> None:
    """After an uneven epoch: buffers of a rank that missed nothing."""
    if not syncs_buffers(model) or not model.modules_buffers:
        return
    rank = model._find_common_rank(model._distributed_rank, is_last)
    with torch.no_grad():
        model._assign_modules_buffers()
        model._sync_module_buffers(rank)
