# SPDX-License-Identifier: Apache-2.0
"""Waits of the forward pass: a tensor is waited for when its module's forward begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch

_LEARNING = 4  # backward passes in which it is learned whose forward uses a tensor


def _inert(*_: Any) -> None:
    """What a hook becomes in a copy of the model."""


def _restore() -> Callable[..., None]:
    return _inert


class _ModuleHook:
    """Forward pre-hook of one module; a copied or unpickled model gets one that does nothing."""

    __slots__ = ("epoch", "handle", "ids", "module", "owner", "parent", "was_called")

    def __init__(
        self, owner: Waits, module: torch.nn.Module, parent: Optional[_ModuleHook]
    ) -> None:
        self.owner = owner
        self.module = module
        self.parent = parent
        self.ids: list[int] = []
        self.epoch = 0
        self.was_called = False
        self.handle: Any = None

    def register(self) -> None:
        if self.handle is None:
            self.handle = self.module.register_forward_pre_hook(self, prepend=True)

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # not traced: its tensors stay with those that are waited for early
        owner = self.owner
        self.was_called = True
        owner.on_forward()
        if self.epoch != owner.epoch:
            self.epoch = owner.epoch
            for number in self.ids:
                owner.wait(number)

    def __deepcopy__(self, memo: Any) -> Any:
        return _inert

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, ())


class _StateHook:
    """Before a state_dict is taken or loaded: everything must be there."""

    def __init__(self, wait_all: Callable[[], None]) -> None:
        self.wait_all = wait_all

    def __call__(self, *_: Any) -> None:
        self.wait_all()

    def __deepcopy__(self, memo: Any) -> Any:
        return _inert

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, ())


class Waits:
    """Forward pre-hooks, and what they cannot cover.

    A tensor is waited for by the module that owns it, once that module's forward was seen to run
    before the tensor's gradient came. Others (a weight that another module reads directly) move up
    to the parent, and stay in ``early`` until one is found: waited for as soon as a step ends.

    Args:
        model: whose modules get hooks.
        on_forward: called before each hooked forward.
        wait: blocks until the tensor of an id may be read.
        wait_all: the same for all of them.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        on_forward: Callable[[], None],
        wait: Callable[[int], None],
        wait_all: Callable[[], None],
    ) -> None:
        self.on_forward = on_forward
        self.wait = wait
        self.epoch = 0  # raised whenever the library may hold tensors again
        self.early: list[int] = []
        self.numbers: list[int] = []  # of all tensors taken care of
        self._passes = 0
        self._hooks: dict[str, _ModuleHook] = {}
        self._places: dict[int, list[_ModuleHook]] = {}  # of what is not proven yet, by id
        self._owners: dict[int, list[_ModuleHook]] = {}  # by id() of a tensor
        for path, module in model.named_modules():
            parent = self._hooks.get(path.rpartition(".")[0]) if path else None
            hook = self._hooks[path] = _ModuleHook(self, module, parent)
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self._owners.setdefault(id(tensor), []).append(hook)
        self._hooks[""].register()
        self._state_hooks = [
            model.register_state_dict_pre_hook(_StateHook(wait_all)),
            model.register_load_state_dict_pre_hook(_StateHook(wait_all)),
        ]

    def add(self, tensor: torch.Tensor, number: int) -> None:
        """Take care of a tensor with this id in the library."""
        hooks = self._owners.get(id(tensor), [])
        for hook in hooks:
            hook.ids.append(number)
            hook.register()
        self._places[number] = hooks
        self.early.append(number)
        self.numbers.append(number)

    def learn(self, used: Iterable[int]) -> None:
        """A backward pass ended, which gave gradients to these ids."""
        if self._passes >= _LEARNING:
            return
        self._passes += 1
        for number in used:
            hooks = self._places.get(number)
            if hooks and any(hook.was_called for hook in hooks):
                del self._places[number]
                self.early.remove(number)
            elif hooks:
                self._move_up(number, hooks)
        for hook in self._hooks.values():
            hook.was_called = False

    def _move_up(self, number: int, hooks: list[_ModuleHook]) -> None:
        for hook in hooks:
            hook.ids.remove(number)
        parents = {id(hook.parent): hook.parent for hook in hooks if hook.parent is not None}
        self._places[number] = list(parents.values())
        for parent in parents.values():
            parent.ids.append(number)
            parent.register()

    def learn_nothing(self, reads_ahead: Callable[[torch.nn.Module], bool]) -> None:
        """Torch reads tensors before the forward of their module: all of them stay in ``early``.

        Args:
            reads_ahead: modules that do; a step that was left open ends before they read.
        """
        self._passes = _LEARNING
        for hook in self._hooks.values():
            hook.ids.clear()
            if reads_ahead(hook.module):
                hook.register()

    def thin(self) -> None:
        """Nothing will be waited for: the model's own hook is enough."""
        self._passes = _LEARNING
        self.early.clear()
        self._unhook(without="")

    def remove(self) -> None:
        """Take the hooks off."""
        self._unhook()
        for handle in self._state_hooks:
            handle.remove()

    def _unhook(self, without: Optional[str] = None) -> None:
        for path, hook in self._hooks.items():
            if hook.handle is not None and path != without:
                hook.handle.remove()
                hook.handle = None
