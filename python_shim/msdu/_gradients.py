# SPDX-License-Identifier: Apache-2.0
"""Gradients of a backward pass: announced one by one as they come, waited for at its end.

The exchange is in place, in autograd's own memory: no copy on the way.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any, Callable, NoReturn, Optional

import torch
from torch.autograd import Variable

from . import _abi, _tensors
from ._device import Host

# Value of a parameter that was used, in the tensor that tells the other ranks. Its square is zero
# in float64, so it does not count in the norms by which the library steers.
_USED = 1e-200
_ENGINE_CODE = getattr(
    getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None
)
_MISSING_SHOWN = 3

# What a gradient's hook does.
IGNORE, NOTE, EXCHANGE = range(3)


def _nested() -> bool:
    """Is this backward pass run by another one (a reentrant checkpoint)?

    On a GPU hooks run in threads of the engine, which know nothing of the outermost call.
    """
    is_engines = isinstance(threading.current_thread(), threading._DummyThread)
    depth, frame = int(is_engines), sys._getframe(1)
    while frame is not None:
        depth += frame.f_code is _ENGINE_CODE
        frame = frame.f_back  # type: ignore[assignment]
    return depth > 1


class Gradients:
    """Hooks on the parameters.

    Args:
        context: the library's context; tensors are added by :meth:`register`.
        slots: trained tensors.
        unused: may a parameter get no gradient?
        on_begin: called at the first gradient of a backward pass, before it is announced.
        on_end: called at the end of the backward pass, gradients reduced where ``mode`` says so.
    """

    can_be_thin = True  # with one rank: one hook is enough

    def __init__(
        self,
        context: Host,
        slots: Sequence[_tensors.Slot],
        unused: bool,
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.mode = EXCHANGE
        self.is_begun = False
        self.not_finite: Optional[_abi.Error] = None
        self.fired = bytearray(len(slots))
        self._context = context
        self._set = context.lib.tensor_set
        self._slots = slots
        self._on_begin = on_begin
        self._on_end = on_end
        self._is_queued = False
        self._left = len(slots)
        self._held: list[torch.Tensor] = []
        self._sparse: list[tuple[_tensors.Slot, torch.Tensor]] = []
        self._reserve = context.reserve(slots)
        self._used: Optional[torch.Tensor] = None
        self._used_id = -1
        if unused:
            self._used = context.empty((2, len(slots)), torch.float64).zero_()
        self._hooks = self._listen()

    def _listen(self) -> list[Any]:
        """Hooks that bring the gradients; a subclass that gets them otherwise has none."""
        return [
            slot.param.register_post_accumulate_grad_hook(self._hook(index, slot))
            for index, slot in enumerate(self._slots)
        ]

    def register(self) -> None:
        """Add the trained tensors to the context, in order of the forward pass."""
        for index, slot in enumerate(self._slots):
            slot.grad_pointer = self._reserve.pointers[index]
            slot.id = self._context.add(
                _tensors.label(slot.name, slot.param),
                slot.pointer,
                slot.grad_pointer,
                slot.keep.numel(),
                _tensors.DTYPES[slot.dtype],
                _abi.ROLE_MODEL,
                index,
            )
        if self._used is not None:
            # its parameter never changes: the library wants one to leave the gradient domain
            self._used_id = self._context.add(
                "msdu: used parameters",
                self._used[0].data_ptr(),
                self._used[1].data_ptr(),
                len(self._slots),
                _abi.FLOAT64,
                _abi.ROLE_MODEL,
                len(self._slots),
            )

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def thin(self) -> None:
        """Nothing will be exchanged: one hook is enough to see that a pass runs."""
        for hook in self._hooks[:-1]:
            hook.remove()
        del self._hooks[:-1]

    def park(self) -> None:
        """Point every gradient at memory that stays: the library may take part without us."""
        for slot, pointer in zip(self._slots, self._reserve.pointers):
            slot.grad_pointer = pointer
            self._context.call(self._set, slot.id, _abi.GRADIENT, pointer)

    # --- one gradient ---

    def _hook(self, index: int, slot: _tensors.Slot) -> Callable[[torch.Tensor], None]:
        def on_gradient(param: torch.Tensor) -> None:
            if self.mode == IGNORE:
                return
            if not self.is_begun:
                self._begin()
            if not self._is_queued:
                self._queue()
            if self.mode == EXCHANGE:
                self._announce(index, slot)
            elif self._is_queued:
                self.mode = IGNORE  # it is noted that a backward pass runs: until its end

        return on_gradient

    def _begin(self) -> None:
        self._on_begin()  # may end the step before, and so change the mode
        self.is_begun = True
        self._left = len(self._slots)
        self.fired[:] = bytes(len(self.fired))

    def _queue(self) -> None:
        """Ask for the end of the outermost backward pass; an inner one ends too early."""
        if not _nested():
            self._is_queued = True
            Variable._execution_engine.queue_callback(self._engine_ends)

    def _engine_ends(self) -> None:
        self.end()

    def _announce(self, index: int, slot: _tensors.Slot) -> None:
        grad = slot.grad
        if self.fired[index] or grad is None:
            self._refuse_twice(slot)
        if slot.is_sparse or grad.stride() != slot.stride or grad.dtype is not slot.dtype:
            grad = self._adopt(slot, grad)
        self._note(index, slot, grad)

    def _refuse_twice(self, slot: _tensors.Slot) -> NoReturn:
        raise _abi.Error(
            _abi.ERR_STATE,
            f"gradient of '{slot.name}' came twice in one backward pass, or the last backward "
            "pass was broken off",
        )

    def _note(self, index: int, slot: _tensors.Slot, grad: torch.Tensor) -> None:
        self.fired[index] = 1
        self._left -= 1
        self._hand_over(slot, grad)

    def _hand_over(self, slot: _tensors.Slot, grad: torch.Tensor) -> None:
        pointer = grad.data_ptr()
        if pointer != slot.grad_pointer:
            code = self._set(self._context.handle, slot.id, _abi.GRADIENT, pointer)
            if code < 0:
                self._context.refuse(code)
            slot.grad_pointer = pointer
        self._held.append(grad)  # nobody frees it while the library has it
        self._context.announce(slot.id, _abi.GRADIENT)

    def _adopt(self, slot: _tensors.Slot, grad: torch.Tensor) -> torch.Tensor:
        """A gradient that does not lie as its parameter does, as one that does."""
        if grad.shape != slot.shape or grad.dtype != slot.dtype:
            slot.moved()  # says what changed, if it is the parameter
            raise _tensors.invalid(
                f"gradient of '{slot.name}' is {list(grad.shape)} {grad.dtype}, its parameter "
                f"{list(slot.shape)} {slot.dtype}"
            )
        if grad.layout is not torch.strided:
            dense = self._dense(slot, grad)
            slot.is_sparse = True
            self._sparse.append((slot, dense))
            return dense
        if all(a == b or n == 1 for a, b, n in zip(grad.stride(), slot.stride, slot.shape)):
            return grad
        grad = self._context.empty(slot.shape, slot.dtype, slot.stride).copy_(grad)
        slot.grad = grad
        return grad

    def _dense(self, slot: _tensors.Slot, sparse: torch.Tensor) -> torch.Tensor:
        return self._context.empty(slot.shape, slot.dtype, slot.stride).zero_().add_(sparse)

    # --- the end of a backward pass ---

    def end(self) -> None:
        """All gradients of this pass are there: announce what is missing, wait for the means."""
        if not self.is_begun:
            return
        self.is_begun = False
        self._is_queued = False
        if self.mode == EXCHANGE:
            self._finish_exchange()
        self._on_end()

    def exchange(self) -> None:
        """Reduce what is in ``.grad`` now, without a backward pass of ours: gradients that were
        set by hand, or that come from micro-batches alone."""
        if not self.is_begun:
            self._begin()
        self.end()

    def _finish_exchange(self) -> None:
        stand_ins = self._announce_missing() if self._left else []
        if self._used is not None:
            self._used[1].fill_(_USED)
            if stand_ins:
                self._used[1][[index for index, _ in stand_ins]] = 0.0
            self._context.announce(self._used_id, _abi.GRADIENT)
        self.not_finite = None
        try:
            self._context.wait(_abi.ALL_TENSORS, _abi.GRADIENT)
        except _abi.Error as problem:
            if problem.code != _abi.ERR_NOT_FINITE:
                raise  # what was announced is still held: the library may be at it
            self.not_finite = problem  # the optimizer must not step; GradScaler sees to it itself
        self._context.let_go(self._held)
        if self._context.has_regrouped:
            self.drop()
        else:
            self._give_back(stand_ins)

    def drop(self) -> None:
        """These are of no step, since the group changed: an optimizer leaves alone what has none."""
        self._sparse.clear()
        for slot in self._slots:
            slot.param.grad = None

    def _announce_missing(self) -> list[tuple[int, torch.Tensor]]:
        """Parameters without a hook in this pass; returns the stand-ins of those without any
        gradient. Others hold one of micro-batches or of an earlier pass."""
        stand_ins = []
        for index, slot in enumerate(self._slots):
            if self.fired[index]:
                continue
            if slot.grad is not None:
                self._announce(index, slot)
                continue
            if self._used is None:
                self._refuse_missing()
            zeros = self._reserve.zeros(index, slot)
            stand_ins.append((index, zeros))
            self._hand_over(slot, zeros)
        return stand_ins

    def _refuse_missing(self) -> None:
        names = [
            slot.name
            for index, slot in enumerate(self._slots)
            if not self.fired[index] and slot.grad is None
        ]
        shown = ", ".join(names[:_MISSING_SHOWN])
        more = f" and {len(names) - _MISSING_SHOWN} more" if len(names) > _MISSING_SHOWN else ""
        raise _abi.Error(
            _abi.ERR_STATE,
            f"no gradient for {shown}{more}: attach(unused=True) allows parameters without one",
        )

    def _give_back(self, stand_ins: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Means where they belong: sparse ones as sparse, stand-ins where another rank used the
        parameter."""
        for slot, dense in self._sparse:
            slot.grad = dense.to_sparse(1)
        self._sparse.clear()
        if not stand_ins or self.not_finite is not None or self._used is None:
            return
        marks = self._used[1].tolist()
        for index, mean in stand_ins:
            if marks[index] > 0:
                slot = self._slots[index]
                slot.grad = mean.to_sparse(1) if slot.is_sparse else self._reserve.own(mean)
