# SPDX-License-Identifier: Apache-2.0
"""The machinery of an attachment: what its hooks do from step to step."""

from __future__ import annotations

import collections
import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import torch

from . import (
    _abi,
    _choose,
    _device,
    _dtensor,
    _moments,
    _paced,
    _regroup,
    _rendezvous,
    _settings,
    _summary,
    _tensors,
)
from ._gradients import EXCHANGE, IGNORE, NOTE, Gradients
from ._record import Recorder
from ._sharded import Sharded
from ._summary import History, Summary
from ._waits import Waits

Optimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None]

attached: weakref.WeakSet[Any] = weakref.WeakSet()  # sessions of this process


def _listed(optimizer: Optimizers) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    if isinstance(optimizer, torch.optim.Optimizer):
        return [optimizer]
    return list(optimizer)


def _refuse_twice(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for other in attached:
        if not other.is_closed and other.model is model:
            raise _abi.Error(_abi.ERR_STATE, "this model is attached already: close() that first")
        if not other.is_closed and any(o in other.optimizers for o in optimizers):
            raise _abi.Error(_abi.ERR_STATE, "this optimizer is attached already")


def _check_arguments(model: Any, optimizers: Sequence[Any], buffers: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise _tensors.invalid(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise _tensors.invalid(
            "the model is wrapped in DistributedDataParallel, which exchanges gradients itself: "
            "attach its .module and do not use the wrapper"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise _tensors.invalid(
                f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer"
            )
    _tensors.refuse_flat(model)
    if buffers not in ("average", "local"):
        raise _tensors.invalid(f"buffers: {buffers!r} is neither 'average' nor 'local'")


class Session:
    """Hooks on gradients, modules and optimizers, and the steps of the library that they make.

    A step of the library is one synchronizing backward pass and what the optimizers do with it. It
    ends when every optimizer that owns gradients has stepped, or when the next pass begins.
    """

    _source: type[Gradients] = Gradients  # where gradients come from
    _takes_by_hand = True  # gradients that an optimizer steps with but no pass brought, too
    _compares_buffers = True  # those that are not exchanged must start equal
    _is_sharded = False  # parameters are parts, by torch

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizers,
        buffers: str,
        unused: bool,
        process_group: Optional[Any],
        settings: Mapping[str, Any],
    ) -> None:
        self.is_closed = True
        self.model = model
        self.optimizers = _listed(optimizer)
        _check_arguments(model, self.optimizers, buffers)
        _refuse_twice(model, self.optimizers)
        _dtensor.reshard(model)
        settings, second_moments = _settings.split(settings)
        self._given = (settings, process_group)
        _settings.check(settings)
        slots = self._trained()
        named = [*model.named_parameters(), *model.named_buffers()]
        named += [(slot.name, slot.param) for slot in slots]  # an optimizer may own more
        if any(_dtensor.is_part(tensor) for _, tensor in named):
            _dtensor.check(named, process_group, settings)
            self._be_sharded()
        device = _device.of((slot.name, slot.device) for slot in slots)
        given = _choose.settings(settings, self.optimizers, device)
        found, store = _rendezvous.place(given, process_group)
        given.update(found)
        self._moments = _moments.SecondMoments(self.optimizers, second_moments)
        self._slots = slots
        self._params: list[torch.Tensor] = [slot.param for slot in slots]
        self._pointers = [slot.pointer for slot in slots]
        self._places = self._own_places()
        self._owned = self._of_optimizers()
        self.history = History()
        self.is_open = False  # a backward pass ended whose step did not
        self._is_local = False
        self._is_averaging = True  # gradients of the next pass are averaged, over all or a host
        self._is_alone = False  # one rank, nothing to exchange or correct: steps are only counted
        self._steps_alone = 0
        self._is_synced = True  # not inside no_sync()
        self._is_dirty = False  # micro-batches were kept from the exchange
        self._has_begun = False  # the backward pass of an iteration that has not ended
        self._is_lost = False  # the group changed in that iteration, which is no step then
        self._is_stale = False  # so it is, since its batch was drawn in another group
        self.group = 0  # number of the present one (setting ranks_least)
        self.drawn: collections.deque[int] = collections.deque()  # groups of batches to come
        self._is_finished = False
        self._passes = 0  # backward passes ended
        self._seen: dict[int, int] = {}  # by optimizer: passes when it last stepped
        self._stepped: set[int] = set()
        self._in_step = False
        self._lr: Optional[float] = None
        self._means: Optional[tuple[torch.Tensor, int]] = None  # one of them, and its version
        self._clips = False  # told to the library
        self._plain_bytes = 0  # what a plain script would have sent
        self._sent = _summary.Sent()
        self._context = _device.kind_of(device)(given, device, store)
        self._context.members = _rendezvous.members(process_group)
        self._equalized = _regroup.Kept(self._context, self.optimizers)
        self._gradients = self._source(
            self._context, slots, unused, self._pass_begins, self._pass_ends
        )
        self._waits = Waits(model, self._forward_begins, self._wait, self.wait)
        self._context.on_disown = self._forget
        self._optimizer_hooks: list[Any] = []
        self._recorder: Optional[Recorder] = None
        self.is_closed = False
        try:
            self._start(buffers)
        except BaseException:
            self.close()
            raise
        attached.add(self)

    # --- start ---

    def _trained(self) -> list[_tensors.Slot]:
        """What is exchanged."""
        return _tensors.trained(self.model, self.optimizers)

    def _be_sharded(self) -> None:
        if self._source is not Gradients:
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED, "the model is sharded: only msdu.attach() can follow that"
            )
        known = set(map(id, self.model.parameters()))
        if self.optimizers and known.isdisjoint(self._of_optimizers()):
            raise _tensors.invalid(
                "the optimizer owns no parameter of the sharded model: make it after fully_shard()"
            )
        self._source = Sharded
        self._is_sharded = True

    def _start(self, buffers: str) -> None:
        self._gradients.register()
        for slot in self._slots:
            self._waits.add(slot.param, slot.id)
        self._buffers: list[tuple[_tensors.Slot, torch.nn.Module, str]] = []
        fixed = self._register_rest(buffers)
        if self._is_sharded:
            self._waits.learn_nothing(_dtensor.reads_ahead)
        self._context.settle()
        self._context.start()
        for one in fixed:
            one.finish()
        summary = self._context.summary()
        self.rank, self.ranks, self.group = summary.rank, summary.ranks, int(summary.epoch)
        self._bytes_of_all = _summary.of_allreduce((slot.keep for slot in self._slots), self.ranks)
        self._is_alone = (
            self.ranks == 1
            and not summary.epoch
            and self._source.can_be_thin
            and _choose.means_nothing_alone(self._given[0])
        )
        if self._is_alone:
            self._gradients.thin()
            self._waits.thin()
        self._take(summary)
        for optimizer in self.optimizers:
            self._optimizer_hooks += [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
        if not self._is_alone:
            _paced.begin(self)
        if summary.has_given:  # this rank has joined
            self._equalized.is_awaited = True
            self._context.has_regrouped = True
            self._follow_group()

    def _follow_group(self) -> None:
        """The group changed (setting ranks_least), if it did: go on with the one that is now. Ranks
        learn of it at different points of an iteration. Where the backward pass has begun, the
        iteration is no step of the library, so that all make the next one together."""
        if self._context.has_regrouped:
            self._is_lost = self._is_lost or self._has_begun
            self._equalized.follow()
            self._meet()

    def _meet(self) -> None:
        summary = self._context.summary()
        self.rank, self.ranks, self.group = summary.rank, summary.ranks, int(summary.epoch)
        self._bytes_of_all = _summary.of_allreduce((slot.keep for slot in self._slots), self.ranks)
        self._waits.epoch += 1
        self._take(summary)

    def _register_rest(self, buffers: str) -> list[_tensors.Fixed]:
        """Buffers and frozen parameters, after the trained tensors."""
        fixed: list[_tensors.Fixed] = []
        trained = {id(param) for param in self._params}
        self._frozen: list[tuple[str, torch.Tensor]] = [
            (name, p)
            for name, p in self.model.named_parameters()
            if id(p) not in trained and _dtensor.local(p).numel()
        ]
        buffer_list = list(self.model.named_buffers())
        rest = [*self._frozen, *buffer_list]
        _device.of((n, t.device) for n, t in [(self._slots[0].name, self._params[0]), *rest])
        for name, tensor in self._frozen:
            self._register_fixed(name, tensor, fixed)
        for name, tensor in buffer_list:
            is_averaged = buffers == "average" and not self._keeps_buffer(tensor)
            if is_averaged and tensor.dtype in _tensors.DTYPES and _dtensor.local(tensor).numel():
                self._register_buffer(name, tensor, fixed)
            elif self._compares_buffers:
                self._register_fixed(name, tensor, fixed)
        return fixed

    def _keeps_buffer(self, buffer: torch.Tensor) -> bool:
        """Is this one left to each rank, whatever happens to the others?"""
        return False

    def _register_fixed(self, name: str, tensor: torch.Tensor, fixed: list[_tensors.Fixed]) -> None:
        part = _dtensor.local(tensor)
        if part.numel() == 0:
            return
        one = _tensors.Fixed(name, part, self._context)
        fixed.append(one)
        self._context.add(
            _tensors.label(name, tensor),
            one.pointer,
            0,
            one.count,
            one.dtype,
            _abi.ROLE_FIXED,
            0,
        )

    def _register_buffer(
        self, name: str, tensor: torch.Tensor, fixed: list[_tensors.Fixed]
    ) -> None:
        if not _tensors.is_dense(_dtensor.local(tensor)):
            if self._compares_buffers:
                self._register_fixed(name, tensor, fixed)
            return
        slot = _tensors.Slot(name, tensor)
        slot.id = self._context.add(
            _tensors.label(name, tensor),
            slot.pointer,
            0,
            slot.keep.numel(),
            _tensors.DTYPES[tensor.dtype],
            _abi.ROLE_BUFFER,
            len(self._slots),
        )
        path, _, key = name.rpartition(".")
        self._buffers.append((slot, self.model.get_submodule(path), key))
        self._waits.add(tensor, slot.id)

    # --- hooks of the backward pass ---

    def _pass_begins(self) -> None:
        if self.is_open and not (self._in_step and self._is_local):
            # the optimizer was skipped, or gradients are accumulated: an iteration all the same
            self._close_step()
            if self._is_local:
                self.wait()  # nobody waited in the forward pass
        elif self.is_open:
            self._gradients.mode = NOTE  # a closure's further pass: a step has one mean
        if not self.is_open and self._equalized.begin():
            self._meet()
        self._has_begun = True
        if not self.is_open and self.drawn and self.drawn.popleft() != self.group:
            self._is_lost = self._is_stale = True
            self._gradients.mode = NOTE
        self._tell_lr()

    def _pass_ends(self) -> None:
        self._passes += 1
        self._plain_bytes += self._bytes_of_pass()
        if self._recorder is not None and self._recorder.end_pass():
            self._recorder = None
        self._is_dirty = False
        self.is_open = True
        if self._is_stale:
            self._is_stale = False
            self._gradients.drop()
        self._set_mode()
        self._waits.learn(s.id for s in self._slots if s.param.grad is not None)
        self._follow_group()
        self._note_means()
        problem = self._gradients.not_finite
        if problem is not None and self._in_step:
            raise problem  # a closure: the optimizer would go on with it

    def _note_means(self) -> None:
        """What clipping changes, it changes in place, and torch counts that."""
        grads = () if self._clips else (slot.param.grad for slot in self._slots)
        found = next((grad for grad in grads if grad is not None), None)
        self._means = None if found is None else (found, found._version)

    def _look_for_clipping(self) -> None:
        if self._means is None or self._is_local or self._is_alone:
            return
        grad, version = self._means
        if grad._version != version:
            self._clips, self._means = True, None
            self._context.call(self._context.lib.set_clipping)

    def _bytes_of_pass(self) -> int:
        """What an allreduce of a pass's gradients would send."""
        return self._bytes_of_all

    def _tell_lr(self) -> None:
        if not self.optimizers:
            return
        lr = float(self.optimizers[0].param_groups[0].get("lr", 0.0))
        if lr != self._lr:
            self._lr = lr
            self._context.call(self._context.lib.set_lr, lr)

    # --- hooks of the forward pass ---

    def _forward_begins(self) -> None:
        if not self.is_open or not self._is_local or self._in_step or self._gradients.is_begun:
            return
        if torch.is_grad_enabled():  # not an evaluation between backward() and step()
            self._close_step()

    def _wait(self, number: int) -> None:
        self._context.wait(number, _abi.PARAMETER)
        self._follow_group()

    # --- hooks of the optimizers ---

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.is_closed or self._is_finished:
            return
        gradients = self._gradients
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if gradients.is_begun:
            gradients.end()  # that pass had no end of its own: reentrant, or broken off
        is_fresh = self._passes > self._seen.get(id(optimizer), 0)
        if closure is None and not (is_fresh and not self._is_dirty):
            self._take_by_hand()
        else:
            self._look_for_clipping()
        if gradients.not_finite is not None and getattr(optimizer, "found_inf", None) is None:
            raise gradients.not_finite
        if self._is_local:
            self.wait()
            self._moments.before(optimizer)
        self._in_step = True

    def _take_by_hand(self) -> None:
        """The optimizer steps with gradients that no pass of ours has seen."""
        if not self._takes_by_hand:
            return
        if not self._is_averaging:
            self.is_open = True
        elif self._is_synced or self._is_dirty:
            mode, self._gradients.mode = self._gradients.mode, EXCHANGE
            self._gradients.exchange()
            self._gradients.mode = mode

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_step = False
        self._moments.after()
        if self.is_closed or self._is_finished:
            return
        self._seen[id(optimizer)] = self._passes
        self._stepped.add(id(optimizer))
        if self.is_open and not self._others_are_due():
            self._close_step()

    def _others_are_due(self) -> bool:
        """Does another optimizer own gradients of this pass?"""
        if len(self.optimizers) == 1:
            return False
        return any(
            p.grad is not None
            for o in self.optimizers
            if id(o) not in self._stepped
            for group in o.param_groups
            for p in group["params"]
        )

    # --- steps ---

    def _close_step(self) -> None:
        """End of an iteration: tell the library where the parameters are, let it take its turn."""
        self.is_open = False
        self._stepped.clear()
        self._check_model()
        if self._is_alone:
            self._steps_alone += 1
            self.history.add(self._counters())
            return
        is_lost, self._is_lost = self._is_lost, False
        self._has_begun = False
        if is_lost:
            return
        self._context.announce_parameters(self._waits.numbers)
        self._context.call(self._context.lib.step)
        self._gradients.not_finite = None
        self._follow_group()
        summary = self._context.summary()
        self.history.add(summary)
        self._take(summary)
        if self._is_local:
            self._waits.epoch += 1
            for number in self._waits.early:
                self._wait(number)

    def _take(self, summary: _abi.SummaryStruct) -> None:
        """In which domain is the next step?"""
        self._sent.note(summary)
        self._is_local = self._is_alone or summary.domain == b"parameter"
        self._is_averaging = not self._is_local or summary.gradient_ranks > 1
        self._moments.ranks = summary.ranks / max(summary.gradient_ranks, 1)
        self._set_mode()

    def _counters(self) -> _abi.SummaryStruct:
        summary = self._context.summary()
        summary.bytes_plain = self._plain_bytes
        if self._is_alone:
            summary.steps = self._steps_alone
        return summary

    def _summarized(self) -> Summary:
        counters = self._counters()
        self._sent.note(counters)
        return Summary.of(counters, self._sent)

    def _set_mode(self) -> None:
        if not self._is_synced or self.is_closed:
            self._gradients.mode = IGNORE
        else:
            self._gradients.mode = EXCHANGE if self._is_averaging else NOTE

    def _check_model(self) -> None:
        """Follow memory that moved; refuse what became another tensor."""
        pointers = [slot.tensor.data_ptr() for slot in self._slots]
        if pointers != self._pointers:
            for slot, pointer in zip(self._slots, pointers):
                if pointer != slot.pointer:
                    self._follow(slot)
            self._pointers = pointers
        for slot, module, key in self._buffers:
            tensor = module._buffers.get(key)
            if tensor is not None and _dtensor.local(tensor).data_ptr() != slot.pointer:
                slot.param = tensor
                self._follow(slot)
        self._check_frozen()
        self._check_places()
        self._check_owned()

    def _check_frozen(self) -> None:
        for name, param in self._frozen:
            if param.requires_grad:
                raise _tensors.invalid(
                    f"parameter '{name}' was frozen when attached and is trained now: attach again"
                )

    def _check_owned(self) -> None:
        owned = self._of_optimizers()
        if len(owned) != len(self._owned):
            raise _tensors.invalid(
                f"the optimizer had {len(self._owned)} parameters when attached and has "
                f"{len(owned)} now: attach again"
            )
        if owned != self._owned:
            raise _tensors.invalid(
                "the optimizer owns another parameter than when attached: attach again"
            )

    def _own_places(self) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
        """Where modules keep what is exchanged."""
        own = {id(param) for param in self._params}
        return [
            (module._parameters, key, param)
            for module in self.model.modules()
            for key, param in module._parameters.items()
            if param is not None and id(param) in own
        ]

    def _check_places(self) -> None:
        """Nobody would see the gradients of a parameter that was put in the place of another."""
        for parameters, key, param in self._places:
            now = parameters.get(key)
            if now is not param and now is not None and now.requires_grad:
                if _dtensor.is_whole_of(now, param):
                    continue  # torch shows it between a forward and the next resharding
                self._refuse_unless_tied(param, now)

    def _refuse_unless_tied(self, param: torch.Tensor, now: torch.Tensor) -> None:
        if not any(now is known for known in self._params):
            name = next(slot.name for slot in self._slots if slot.param is param)
            raise _tensors.invalid(f"parameter '{name}' was replaced by another one: attach again")

    def _of_optimizers(self) -> list[int]:
        owned: list[int] = []
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                owned += map(id, group["params"])
        return owned

    def _follow(self, slot: _tensors.Slot) -> None:
        # by the host: memory that is let go may be given to any stream
        self._context.call(self._context.lib.tensor_wait, slot.id, _abi.PARAMETER)
        before = slot.keep  # the library's until the call
        self._context.call(self._context.lib.tensor_set, slot.id, _abi.PARAMETER, slot.moved())
        del before

    def _settle(self) -> None:
        """Between steps, nothing in the trainer's hands."""
        if self._gradients.is_begun:
            self._gradients.end()
        if self.is_open:
            self._close_step()
        self._context.call(self._context.lib.tensor_wait, _abi.ALL_TENSORS, _abi.PARAMETER)
        self._follow_group()
        self._context.settle()

    # --- batches that follow speed ---

    @property
    def next_step(self) -> int:
        """The step that a batch fetched now is for."""
        return int(self._counters().steps) + (1 if self.is_open and not self._is_lost else 0)

    def distrust_drawn(self) -> None:
        """Batches that were drawn are not for the steps to come."""
        self.drawn = collections.deque([-1] * len(self.drawn))

    def where(self) -> _paced.Steps:
        """For schedulers, which go on alone when this is over."""
        if self.is_over:
            return _paced.Steps(False, 0, 0)
        summary = self._counters()
        is_clock = summary.state == b"clock"
        return _paced.Steps(is_clock, int(summary.steps), int(summary.common_steps))

    def draw(self, work: _abi.Work) -> None:
        """msdu_next()."""
        if self._is_alone:
            work.step = 0  # the library counts none
        self._context.call(self._context.lib.next, ctypes.byref(work))
        self._follow_group()

    @property
    def is_over(self) -> bool:
        """Finished, closed, or the parent process's: nothing is synchronized any more."""
        return self.is_closed or self._is_finished

    # --- waiting, the end ---

    def wait(self) -> None:
        """Block until parameters and buffers may be read and written; on a GPU, by what its current
        stream is given from here on.

        Only for code that touches them between ``optimizer.step()`` and the next forward pass
        (an exponential average of the weights, clamping).
        """
        if not self.is_closed and not self._is_finished:
            self._wait(_abi.ALL_TENSORS)

    def close(self) -> None:
        """Take the hooks off and leave the group; without finish() the other ranks lose us."""
        if self.is_closed:
            return
        if self._context.handle is not None:
            self._last = self._summarized()
        self._take_off()
        self._context.destroy()
        self.is_closed = True

    def _take_off(self) -> None:
        _paced.end(self)
        self._moments.restore()
        self._gradients.mode = IGNORE
        self._gradients.remove()
        self._waits.remove()
        for hook in self._optimizer_hooks:
            hook.remove()
        self._optimizer_hooks.clear()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def _forget(self) -> None:
        """In a forked child: do nothing from here on."""
        self.is_closed = True
        self.is_open = False
        self._is_local = False
        self._is_alone = False  # one rank, nothing to exchange or correct: steps are only counted
        self._steps_alone = 0
        self._waits.epoch = 0
        if self._recorder is not None:
            self._recorder.drop()  # the file is the parent's
            self._recorder = None
        self._take_off()
