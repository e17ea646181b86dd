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

from . import _abi, _tensors
from ._gradients import EXCHANGE, Gradients


class Armed(Gradients):
    """Gradients of those wrapped models whose reducer is armed; all others are left alone.

    Several backward passes may follow one forward pass, each through a part of the model: a
    gradient that came is disarmed, others stay armed until they come.

    Attributes:
        armed: by slot: is its gradient reduced when it comes next?
        over: parts (numbers of wrapped models) that the pass reduced which ends now.
        strict: parts whose reducer expects every gradient exactly once.
    """

    def _listen(self) -> list[Any]:
        self.armed = bytearray(len(self._slots))
        self.over: set[int] = set()
        self.strict: set[int] = set()
        self._ours: dict[int, list[int]] = {}
        for index, slot in enumerate(self._slots):
            self._ours.setdefault(slot.part, []).append(index)
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

        def on_armed(param: torch.Tensor) -> None:
            if self.armed[index]:
                on_gradient(param)
            elif slot.part in self.strict:
                self._refuse_again(slot)

        return on_armed

    def _refuse_again(self, slot: _tensors.Slot) -> None:
        """Torch's reducer, too, raises where a gradient comes again before all of them came."""
        if any(self.armed[index] for index in self._ours[slot.part]):
            raise _abi.Error(
                _abi.ERR_STATE,
                f"gradient of '{slot.name}' came in two backward passes after one forward pass: "
                "ranks would go apart; add the losses and run one backward pass",
            )

    def arm(self, part: int) -> None:
        """The next gradients of this part are reduced."""
        for index in self._ours.get(part, ()):
            self.armed[index] = 1

    def end(self) -> None:
        """As torch's: gradients that came are disarmed."""
        if not self.is_begun:
            return
        over = self.fired if self.mode == EXCHANGE else self.armed  # else nobody counts them
        came = [index for index, is_over in enumerate(over) if is_over]
        self.over = {self._slots[index].part for index in came}
        super().end()
        for index in came:
            self.armed[index] = 0

    def _announce_missing(self) -> list[tuple[int, torch.Tensor]]:
        for index, slot in enumerate(self._slots):
            if not self.armed[index]:
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
