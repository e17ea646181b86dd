# SPDX-License-Identifier: Apache-2.0
"""What a script makes, as ``python -m msdu`` sees it, and the attachments that follow from it."""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from . import _abi, _device, _manual, _reducer, _summary, _tensors, ddp
from ._attach import Attachment
from ._ends import Ends, notice

logger = logging.getLogger("msdu")
_SHOWN = 8  # ranks of a group


@dataclass
class Options:
    """What the command line says; picklable, since spawned ranks get it.

    Attributes:
        settings: of the library.
        buffers: ``"ddp"``, ``"average"`` or ``"local"``.
        sync_every: all ranks are made equal after so many steps; 0: never before the end.
        sync_on_eval: and when a wrapped model goes to evaluation, on all ranks.
        is_quiet: no summary at the end.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    buffers: str = "ddp"
    sync_every: int = 0
    sync_on_eval: bool = False
    is_quiet: bool = False


class Watched(Attachment):
    """An attachment that nobody in the script knows of.

    Args:
        model: the module that was wrapped, or several.
        optimizers: that own its parameters.
        group: of torch.distributed.
        options: of the command line.
        parts: the parameters that each wrapper's reducer has; what else the module or the
            optimizers own is left alone, as torch does it.
        kept: buffers that the script asked DDP not to broadcast: each rank keeps its own, unless
            the command line says "average".

    Attributes:
        leaves_buffers: DDP broadcasts buffers at each forward pass as long as gradients are
            exchanged, as the script made it.
    """

    _source: type[Any] = _reducer.Armed
    _takes_by_hand = False
    _compares_buffers = False

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        group: Optional[Any],
        options: Options,
        parts: Sequence[Iterable[torch.Tensor]] = (),
        kept: Iterable[torch.Tensor] = (),
    ) -> None:
        self._every = options.sync_every
        self._steps = 0
        self._next_sync = self._every
        self._parts = {id(param): part for part, params in enumerate(parts) for param in params}
        self._unfrozen: set[str] = set()
        self._bytes: dict[frozenset[int], int] = {}  # of an allreduce, by parts
        self.leaves_buffers = options.buffers == "ddp"
        self._kept = {id(buffer) for buffer in kept} if self.leaves_buffers else set()
        buffers = "average" if options.buffers == "ddp" else options.buffers
        super().__init__(model, optimizers, buffers, True, group, options.settings)

    def _trained(self) -> list[_tensors.Slot]:
        slots = _tensors.trained(self.model, [], self._parts)
        slots = [slot for slot in slots if id(slot.param) in self._parts]
        for slot in slots:
            slot.part = self._parts[id(slot.param)]
        return slots

    def _keeps_buffer(self, buffer: torch.Tensor) -> bool:
        return id(buffer) in self._kept

    def arm(self, part: int) -> None:
        """The next backward pass reduces the gradients of this wrapper's model."""
        self._armed().arm(part)

    def be_strict(self, part: int) -> None:
        """This wrapper's reducer expects every gradient exactly once."""
        self._armed().strict.add(part)

    def _armed(self) -> _reducer.Armed:
        assert isinstance(self._gradients, _reducer.Armed)
        return self._gradients

    def named_group(self) -> str:
        """For the beginning of a line, where not all ranks are in the group."""
        members = self._context.members
        shown = ", ".join(map(str, members[:_SHOWN])) + (", ..." if len(members) > _SHOWN else "")
        return f"group of ranks {shown}: " if members else ""

    @property
    def is_exchanging(self) -> bool:
        """Gradients are averaged, over several ranks."""
        return self._is_averaging and self.ranks > 1

    def _bytes_of_pass(self) -> int:
        over = frozenset(self._armed().over)
        if over not in self._bytes:
            params = (slot.param for slot in self._slots if slot.part in over)
            self._bytes[over] = _summary.of_allreduce(params, self.ranks)
        return self._bytes[over]

    def _check_frozen(self) -> None:
        for name, param in self._frozen:
            if param.requires_grad and name not in self._unfrozen:
                self._unfrozen.add(name)
                notice(
                    f"parameter '{name}' was frozen when it was wrapped and is trained now: "
                    "DistributedDataParallel does not reduce it, so neither does msdu"
                )

    def _check_owned(self) -> None:
        """An optimizer may get or lose parameters; the wrapper decides what is reduced."""

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

    def _bytes_of_pass(self) -> int:
        return self._bytes_of_all

    def _check_owned(self) -> None:
        Attachment._check_owned(self)

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

    params: Sequence[torch.Tensor]  # that its reducer has
    attachment: Optional[Watched] = None
    hook: str = ""  # the script's own communication hook
    is_out: bool = False
    joins: int = 0  # contexts open


class Watch:
    """Sees what the script makes, and attaches.

    Attributes:
        options: of the command line.
        attachments: made so far.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._has_stepped = False
        self.attachments: list[Watched] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._wrapped: weakref.WeakKeyDictionary[TorchDDP, _Wrapped] = weakref.WeakKeyDictionary()
        self.ends = Ends()
        self.reductions = _manual.Reductions(self._unwrapped, self._attach_manual, self.ends.out)

    # --- what the script makes ---

    def saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made."""
        self._optimizers.append(weakref.ref(optimizer))
        self.ends.saw_optimizer(optimizer)
        self.reductions.saw_optimizer()

    def saw_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step is over."""
        self._has_stepped = True
        self.ends.look()
        self.reductions.stepped(optimizer)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that live, in the order of their making."""
        found = [one() for one in self._optimizers]
        return [one for one in found if one is not None]

    def of(self, model: TorchDDP) -> _Wrapped:
        """What is known of a wrapped model."""
        known = self._wrapped.get(model)
        if known is None:
            params = [p for p in model.module.parameters() if p.requires_grad]
            known = self._wrapped[model] = _Wrapped(params)
            self.ends.wraps += 1
            self.ends.look()
        return known

    def saw_hook(self, model: TorchDDP, name: str) -> None:
        """The script registers a communication hook.

        Raises:
            msdu.Error: too late: the model is attached, and torch's reducer would not call it.
        """
        known = self.of(model)
        if known.attachment is not None:
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                f"communication hook {name}: this model is attached since its first forward pass; "
                "a hook that is registered before it keeps the model with torch",
            )
        known.hook = name

    # --- attaching ---

    def attachment_of(self, model: TorchDDP) -> Optional[Watched]:
        """At a forward pass: the attachment, made now if it can be. None: DDP does its own work."""
        known = self.of(model)
        if known.attachment is not None:
            return None if known.attachment.is_over else known.attachment
        if known.is_out or not torch.is_grad_enabled():
            return None
        if not model.training and not self._has_stepped:
            return None  # a look before training, on one rank perhaps, or fine-tuning in eval()
        self.ends.forwards += 1
        if known.joins or not model.require_backward_grad_sync:
            self.ends.unsynced += 1
            return None  # DDP would not reduce this pass, or counts on its own messages
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
        sharding = _tensors.sharding_of(p for model in models for p in model.module.parameters())
        if sharding:
            return f"parameters that are sharded by {sharding}"
        try:
            for model in models:
                slots = _tensors.trained(model.module, [], {id(p) for p in self.of(model).params})
                _device.of((slot.name, slot.device) for slot in slots)
        except _abi.Error as problem:
            return str(problem)
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
        self.ends.out(
            f"not attached, this DistributedDataParallel works as the script made it: {reason}"
        )

    def _attach(
        self, models: Sequence[TorchDDP], optimizers: Sequence[torch.optim.Optimizer]
    ) -> Watched:
        modules = [model.module for model in models]
        self._let_go(modules, optimizers)
        module = modules[0] if len(modules) == 1 else _Several(modules)
        given = {"broadcast": "no", **self.options.settings}  # DDP did it
        options = Options(given, self.options.buffers, self.options.sync_every)
        parts = [self.of(model).params for model in models]
        kept = [b for model in models if not _reducer.syncs_buffers(model) for b in model.buffers()]
        attachment = Watched(module, optimizers, models[0].process_group, options, parts, kept)
        self.attachments.append(attachment)
        for part, model in enumerate(models):
            self.of(model).attachment = attachment
            _reducer.take_over(model, functools.partial(attachment.arm, part))
            if not model.find_unused_parameters and not model.static_graph:
                attachment.be_strict(part)
        logger.info("attached: %r", attachment)
        return attachment

    def _let_go(
        self,
        modules: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        """End earlier attachments of what the script has wrapped anew."""
        for one in self.attachments:
            its = one.model.parts if isinstance(one.model, _Several) else [one.model]
            is_shared = any(a is b for a in its for b in modules)
            if not one.is_closed and (is_shared or any(a in one.optimizers for a in optimizers)):
                one.finish()
                one.close()

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
        self, optimizers: Sequence[torch.optim.Optimizer], must_be_local: bool, group: Any
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
        attachment = Manual(torch.nn.Module(), optimizers, group, options)
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
        """A few lines on rank 0: what was done, or why nothing was."""
        if not self.attachments:
            self.ends.tell_nothing()
        for one in self.attachments:
            if one.rank == 0 and one.is_own and not self.options.is_quiet:
                where = one.named_group()
                for line in str(one.summary()).splitlines():
                    print(f"msdu: {where}{line}", file=sys.stderr)

    def abandon(self) -> None:
        """Leave the group; ranks that still train lose us, and say so."""
        for one in self.attachments:
            one.close()
