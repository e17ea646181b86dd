# SPDX-License-Identifier: Apache-2.0
"""What ``python -m msdu`` changes in torch: DistributedDataParallel, optimizers, spawned ranks.

Torch's own wrapper stays what the script holds; once an optimizer over its parameters is known, its
forward goes straight to the module, which is attached, and its reducer is not asked any more.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _abi, _reducer, ddp
from ._watch import Options, Watch, Watched

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
    _replace("join", _join)
    _replace("join_hook", _join_hook)
    _replace("train", _train)
    for name in (
        "register_comm_hook",
        "_register_builtin_comm_hook",
        "_register_buffer_comm_hook",
        "_register_fused_optim",
    ):
        _replace(name, _own_hook)


def _init(original: Any) -> Any:
    def init(self: TorchDDP, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch().of(self)

    return init


def _forward(original: Any) -> Any:
    def forward(self: TorchDDP, *inputs: Any, **kwargs: Any) -> Any:
        if not ddp.not_traced(functools.partial(_begin_forward, self)):
            return original(self, *inputs, **kwargs)
        if self.device_ids:
            moved = self.to_kwargs(inputs, kwargs, self.device_ids[0])
            inputs, kwargs = moved[0][0], moved[1][0]
        result = self.module(*inputs, **kwargs)
        ddp.not_traced(functools.partial(_reducer.after_forward, self))
        return result

    return forward


def _begin_forward(model: TorchDDP) -> bool:
    """Is the model attached? Then the wrapper has nothing to do but this."""
    attachment = watch().attachment_of(model)
    if attachment is None:
        return False
    is_ddps = attachment.leaves_buffers and attachment.is_exchanging and not watch().of(model).joins
    _reducer.before_forward(model, is_ddps)
    return True


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
        known.joins += 1
        try:
            if attachment is not None:
                yield
            else:  # torch's context must see all of it
                with original(
                    self, divide_by_initial_world_size, enable, throw_on_early_termination
                ):
                    yield
        finally:
            known.joins -= 1
        if attachment is not None and enable:
            _end_join(self, attachment)

    return join


def _end_join(model: TorchDDP, attachment: Watched) -> None:
    is_exchanging = attachment.is_exchanging
    attachment.join()
    if is_exchanging and attachment.leaves_buffers:
        _reducer.sync_buffers_from_last(model, attachment.has_all)


def _join_hook(original: Any) -> Any:
    def join_hook(self: TorchDDP, **kwargs: Any) -> Any:
        known = watch().of(self)
        if known.attachment is not None and not known.attachment.is_over:
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                "Join([model, ..]) around a model that is attached already: use model.join()",
            )
        if not known.joins:  # not called by our join()
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
        hook = args[1] if len(args) > 1 else kwargs.get("hook", args[0] if args else original)
        watch().saw_hook(self, getattr(hook, "__qualname__", str(hook)))
        return original(self, *args, **kwargs)

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
    register_optimizer_step_post_hook(lambda optimizer, *_: watch().saw_step(optimizer))


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
        watch().ends.has_spawned = True
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
