# SPDX-License-Identifier: Apache-2.0
"""What ``python -m msdu`` changes in torch: DistributedDataParallel, optimizers, spawned ranks.

Torch's own wrapper stays what the script holds; once an optimizer over its parameters is known, its
forward goes straight to the module, which is attached, and its reducer is not asked any more.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _abi, _manual, _tensors, ddp
from ._attach import Attachment

logger = logging.getLogger("msdu")


@dataclass
class Options:
    """What the command line says; picklable, since spawned ranks get it.

    Attributes:
        settings: of the library.
        buffers: ``"average"`` or ``"local"``.
        sync_every: all ranks are made equal after so many steps; 0: never before the end.
        sync_on_eval: and when a wrapped model goes to evaluation, on all ranks.
        is_quiet: no summary at the end.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    buffers: str = "average"
    sync_every: int = 0
    sync_on_eval: bool = False
    is_quiet: bool = False


class Watched(Attachment):
    """An attachment that nobody in the script knows of."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        group: Optional[Any],
        options: Options,
    ) -> None:
        self._every = options.sync_every
        self._steps = 0
        self._next_sync = self._every
        super().__init__(model, optimizers, options.buffers, True, group, options.settings)

    def _trained(self) -> list[_tensors.Slot]:
        return _tensors.trained(self.model, [])  # what else the optimizers own stays local

    def _close_step(self) -> None:
        super()._close_step()
        self._steps += 1

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        super()._after_step(optimizer, args, kwargs)
        self._sync_if_due()

    def _forward_begins(self) -> None:
        super()._forward_begins()
        # a rank whose optimizer was skipped comes this way
        if torch.is_grad_enabled() and not self._in_step and not self._gradients.is_begun:
            self._sync_if_due()

    def _sync_if_due(self) -> None:
        if self._every and self._steps >= self._next_sync and not self.is_open:
            self._next_sync += self._every
            self.synchronize()


class Manual(Watched):
    """An attachment whose gradients the script reduces when it likes."""

    _source = _manual.Held

    def _trained(self) -> list[_tensors.Slot]:
        return _tensors.trained(self.model, self.optimizers)

    def reduce_now(self) -> None:
        """The gradients of a step are in ``.grad``: make them means, or note the step."""
        self._gradients.exchange()


class _Several(torch.nn.Module):
    """Modules that share an optimizer, so they are attached as one."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)


@dataclass
class _Wrapped:
    """What is known of one DistributedDataParallel."""

    attachment: Optional[Watched] = None
    hook: str = ""  # the script's own communication hook
    is_out: bool = False
    no_syncs: int = 0  # contexts open


class Watch:
    """Sees what the script makes, and attaches.

    Attributes:
        options: of the command line.
        attachments: made so far.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.attachments: list[Watched] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._wrapped: weakref.WeakKeyDictionary[TorchDDP, _Wrapped] = weakref.WeakKeyDictionary()
        self.reductions = _manual.Reductions(self._unwrapped, self._attach_manual, notice)

    # --- what the script makes ---

    def saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made."""
        self._optimizers.append(weakref.ref(optimizer))
        self.reductions.saw_optimizer()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that live, in the order of their making."""
        found = [one() for one in self._optimizers]
        return [one for one in found if one is not None]

    def of(self, model: TorchDDP) -> _Wrapped:
        """What is known of a wrapped model."""
        return self._wrapped.setdefault(model, _Wrapped())

    def saw_hook(self, model: TorchDDP, name: str) -> None:
        """The script registered a communication hook."""
        self.of(model).hook = name

    # --- attaching ---

    def attachment_of(self, model: TorchDDP) -> Optional[Watched]:
        """At a forward pass: the attachment, made now if it can be. None: DDP does its own work."""
        known = self.of(model)
        if known.attachment is not None:
            return None if known.attachment.is_over else known.attachment
        if known.is_out or known.no_syncs or not model.training or not torch.is_grad_enabled():
            return None
        models, optimizers = self._component(model)
        if not optimizers:
            return None  # not yet: this pass is DDP's
        reason = self._why_not(models, optimizers)
        if reason:
            self.stay_out(models, reason)
            return None
        return self._attach(models, optimizers)

    def _component(self, model: TorchDDP) -> tuple[list[TorchDDP], list[torch.optim.Optimizer]]:
        """All models and optimizers that hang together with this one."""
        models = [model]
        optimizers: list[torch.optim.Optimizer] = []
        owned = {id(p) for p in model.module.parameters()}
        others = [one for one in self._wrapped if one is not model]
        left = self.optimizers()
        is_growing = True
        while is_growing:
            is_growing = False
            for one in left[:]:
                ids = {id(p) for group in one.param_groups for p in group["params"]}
                if ids & owned:
                    left.remove(one)
                    optimizers.append(one)
                    is_growing = self._grow(models, others, ids, owned) or is_growing
        models.sort(key=lambda one: list(self._wrapped).index(one))
        return models, optimizers

    @staticmethod
    def _grow(
        models: list[TorchDDP], others: list[TorchDDP], ids: set[int], owned: set[int]
    ) -> bool:
        """Add the models that an optimizer's parameters belong to."""
        before = len(models)
        for other in others[:]:
            theirs = {id(p) for p in other.module.parameters()}
            if theirs & ids:
                others.remove(other)
                models.append(other)
                owned |= theirs
        return len(models) > before

    def _why_not(
        self, models: Sequence[TorchDDP], optimizers: Sequence[torch.optim.Optimizer]
    ) -> str:
        """Why the script's own way stays; empty: nothing speaks against attaching."""
        for model in models:
            hook = self.of(model).hook
            reason = f"a communication hook of the script's own, {hook}" if hook else ""
            reason = reason or ddp.why_not(model)
            if reason:
                return reason
        if any(model.process_group != models[0].process_group for model in models):
            return "models of several process groups under one optimizer"
        for one in optimizers:
            names = {kind.__name__ for kind in type(one).__mro__}
            if "ZeroRedundancyOptimizer" in names:
                return "ZeroRedundancyOptimizer, which shards the optimizer itself"
        return ""

    def stay_out(self, models: Sequence[TorchDDP], reason: str) -> None:
        """Leave these models to torch, and say why."""
        for model in models:
            self.of(model).is_out = True
        notice(f"not attached, this DistributedDataParallel works as the script made it: {reason}")

    def _attach(
        self, models: Sequence[TorchDDP], optimizers: Sequence[torch.optim.Optimizer]
    ) -> Watched:
        modules = [model.module for model in models]
        module = modules[0] if len(modules) == 1 else _Several(modules)
        given = {"broadcast": "no", **self.options.settings}  # DDP did it
        options = Options(given, self.options.buffers, self.options.sync_every)
        attachment = Watched(module, optimizers, models[0].process_group, options)
        self.attachments.append(attachment)
        for model in models:
            self.of(model).attachment = attachment
        logger.info("attached: %r", attachment)
        return attachment

    # --- scripts without DistributedDataParallel ---

    def _unwrapped(self) -> list[torch.optim.Optimizer]:
        """Optimizers that own no parameter of a DistributedDataParallel."""
        wrapped = {id(p) for model in self._wrapped for p in model.parameters()}
        return [
            one
            for one in self.optimizers()
            if ddp.has_hooks(one)
            and not any(id(p) in wrapped for g in one.param_groups for p in g["params"])
        ]

    def _attach_manual(
        self, optimizers: Sequence[torch.optim.Optimizer], must_be_local: bool
    ) -> Optional[Manual]:
        given = dict(self.options.settings)
        if must_be_local and given.setdefault("domain", "parameter") not in ("auto", "parameter"):
            notice(
                "not attached, gradients are reduced as the script does it: it changes them "
                "between one reduction and the next, which only domain parameter allows"
            )
            return None
        if must_be_local:
            given["domain"] = "parameter"
        options = Options(given, self.options.buffers, self.options.sync_every)
        attachment = Manual(torch.nn.Module(), optimizers, None, options)
        self.attachments.append(attachment)
        logger.info("attached: %r", attachment)
        return attachment

    # --- the end ---

    def finish(self) -> None:
        """The script ended well: all ranks get the same bits; one summary."""
        for one in self.attachments:
            if not one.is_over:
                one.finish()
        self.report()
        self.abandon()

    def report(self) -> None:
        """A few lines on rank 0."""
        for one in self.attachments:
            if not one.is_closed and one.rank == 0 and not self.options.is_quiet:
                for line in str(one.summary()).splitlines():
                    print(f"msdu: {line}", file=sys.stderr)

    def abandon(self) -> None:
        """Leave the group; ranks that still train lose us, and say so."""
        for one in self.attachments:
            one.close()


def notice(text: str) -> None:
    """One line on standard error, by rank 0."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"msdu: {text}", file=sys.stderr)


# --- patches ---

_watch: Optional[Watch] = None
_is_patched = False


def watch() -> Watch:
    """The one of this process."""
    assert _watch is not None
    return _watch


def install(options: Options) -> Watch:
    """Begin to watch; torch is changed once a process."""
    global _watch, _is_patched
    _watch = Watch(options)
    if not _is_patched:
        _is_patched = True
        _patch_optimizer()
        _patch_ddp()
        _patch_all_reduce()
        _patch_spawn()
    return _watch


def _patch_optimizer() -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch().saw_optimizer(self)

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


def _replace(name: str, make: Callable[[Any], Any]) -> None:
    """A method of DistributedDataParallel by what ``make`` returns for the original."""
    original = getattr(TorchDDP, name, None)
    if original is not None:
        setattr(TorchDDP, name, functools.wraps(original)(make(original)))


def _patch_ddp() -> None:
    _replace("__init__", _init)
    _replace("forward", _forward)
    _replace("no_sync", _no_sync)
    _replace("join", _join)
    _replace("join_hook", _join_hook)
    _replace("train", _train)
    for name in ("register_comm_hook", "_register_builtin_comm_hook", "_register_fused_optim"):
        _replace(name, _own_hook)


def _init(original: Any) -> Any:
    def init(self: TorchDDP, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch().of(self)

    return init


def _forward(original: Any) -> Any:
    def forward(self: TorchDDP, *inputs: Any, **kwargs: Any) -> Any:
        if ddp.not_traced(functools.partial(watch().attachment_of, self)) is None:
            return original(self, *inputs, **kwargs)
        if self.device_ids:
            moved = self.to_kwargs(inputs, kwargs, self.device_ids[0])
            inputs, kwargs = moved[0][0], moved[1][0]
        return self.module(*inputs, **kwargs)

    return forward


def _no_sync(original: Any) -> Any:
    @contextmanager
    def no_sync(self: TorchDDP) -> Iterator[None]:
        known = watch().of(self)
        known.no_syncs += 1
        try:
            with original(self):
                if known.attachment is None or known.attachment.is_over:
                    yield
                else:
                    with known.attachment.no_sync():
                        yield
        finally:
            known.no_syncs -= 1

    return no_sync


def _join(original: Any) -> Any:
    @contextmanager
    def join(
        self: TorchDDP,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        known = watch().of(self)
        attachment = watch().attachment_of(self)
        if attachment is not None:
            yield
            if enable:
                attachment.join()
            return
        known.no_syncs += 1  # torch's context must see all of it
        try:
            with original(self, divide_by_initial_world_size, enable, throw_on_early_termination):
                yield
        finally:
            known.no_syncs -= 1

    return join


def _join_hook(original: Any) -> Any:
    def join_hook(self: TorchDDP, **kwargs: Any) -> Any:
        known = watch().of(self)
        if known.attachment is not None and not known.attachment.is_over:
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                "Join([model, ..]) around a model that is attached already: use model.join()",
            )
        if not known.no_syncs:  # not called by our join()
            watch().stay_out([self], "torch's Join, which shadows DDP's own messages")
        return original(self, **kwargs)

    return join_hook


def _train(original: Any) -> Any:
    def train(self: TorchDDP, mode: bool = True) -> Any:
        attachment = watch().of(self).attachment
        is_due = watch().options.sync_on_eval and self.training and not mode
        if is_due and attachment is not None and not attachment.is_over:
            attachment.synchronize()
        return original(self, mode)

    return train


def _own_hook(original: Any) -> Any:
    def register(self: TorchDDP, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        hook = args[1] if len(args) > 1 else kwargs.get("hook", args[0] if args else original)
        watch().saw_hook(self, getattr(hook, "__qualname__", str(hook)))
        return result

    return register


def _patch_all_reduce() -> None:
    module = dist.distributed_c10d
    original = module.all_reduce

    @functools.wraps(original)
    def all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        return watch().reductions.reduce(original, tensor, op, group, async_op)

    for place in (module, dist):
        setattr(place, "all_reduce", all_reduce)  # noqa: B010 - they have no types
    register_optimizer_step_post_hook(lambda optimizer, *_: watch().reductions.stepped(optimizer))


class _Child:
    """A rank that the script spawns: the same as if it had been started by ``python -m msdu``."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self.function = function
        self.options = options

    def __call__(self, *args: Any) -> Any:
        return run(lambda: self.function(*args), self.options)


def _patch_spawn() -> None:
    module = sys.modules["torch.multiprocessing.spawn"]
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(_Child(fn, watch().options), *args, **kwargs)

    for place in (module, torch.multiprocessing):
        setattr(place, "start_processes", start_processes)  # noqa: B010 - they have no types


def run(script: Callable[[], Any], options: Options) -> Any:
    """Run a script, watched; finish where it ended well, else leave at once."""
    here = install(options)
    try:
        result = script()
    except SystemExit as end:
        if end.code in (None, 0):
            _finish(here)
        here.abandon()
        raise
    except BaseException:
        here.abandon()
        raise
    _finish(here)
    return result


def _finish(here: Watch) -> None:
    """The end that all ranks come to; a line instead of a traceback where one does not."""
    try:
        here.finish()
    except _abi.Error as problem:
        here.abandon()
        raise SystemExit(f"msdu: the script ended, but not on all ranks: {problem}") from None
