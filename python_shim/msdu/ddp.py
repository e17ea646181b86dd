# SPDX-License-Identifier: Apache-2.0
"""In the place of torch's DistributedDataParallel, or behind it as its communication hook."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from . import _abi, _device, _regroup, _tensors
from ._attach import Attachment
from ._gradients import EXCHANGE, Gradients
from ._session import Optimizers

_T = TypeVar("_T")
_Future = torch.futures.Future[torch.Tensor]

# Keywords of torch's DistributedDataParallel that say how its reducer works; there is none here.
_REDUCERS = (
    "dim",
    "bucket_cap_mb",
    "bucket_cap_mb_list",
    "find_unused_parameters",
    "check_reduction",
    "gradient_as_bucket_view",
    "static_graph",
    "skip_all_reduce_unused_params",
)


def optimizers_of(module: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Living optimizers that own parameters of a module, in the order of these parameters.

    Optimizers that wrap another one without being one (no hooks of their own) are left out: the
    inner one is found.
    """
    order = {id(param): index for index, param in enumerate(module.parameters())}
    found: list[tuple[int, int, torch.optim.Optimizer]] = []
    for one in gc.get_objects():
        if not issubclass(type(one), torch.optim.Optimizer) or not has_hooks(one):
            continue
        owned = [order.get(id(p), -1) for g in one.param_groups for p in g["params"]]
        if max(owned, default=-1) >= 0:
            found.append((min(index for index in owned if index >= 0), len(found), one))
    return [one for _, _, one in sorted(found)]


def has_hooks(optimizer: Any) -> bool:
    """Was it made by Optimizer.__init__, and so takes hooks on its step?"""
    return "_optimizer_step_post_hooks" in vars(optimizer)


# torch.compiler.disable() imports the compiler at once; this at the first call, like zero_grad().
@vars(torch)["_disable_dynamo"]  # type: ignore[untyped-decorator,unused-ignore]
def not_traced(function: Callable[[], _T]) -> _T:
    """Call it, outside of what torch.compile() traces."""
    return function()


class DistributedDataParallel(torch.nn.Module):
    """Drop-in for ``torch.nn.parallel.DistributedDataParallel``: the same wrapper, attached.

    Args:
        module: to be trained by several processes; becomes the attribute ``module``.
        optimizer: of torch.optim, or several. None: those that own its parameters when the first
            training forward begins, since scripts make the wrapper before the optimizer.
        device_ids: None, or a list of one device, where inputs are moved.
        output_device: not needed with one device.
        process_group: of torch.distributed; None: the default group, else the launcher's.
        broadcast_buffers: floating point buffers are averaged with the parameters; False: each
            rank keeps its own.
        init_sync: start from rank 0's parameters.
        settings: of the library, as for :func:`msdu.attach`, and torch's keywords for its
            reducer, which have no meaning here.

    Attributes:
        module: the module.
        attachment: None until attached.

    Raises:
        msdu.Error: as :func:`msdu.attach`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: Optimizers = None,
        *,
        device_ids: Optional[list[Any]] = None,
        output_device: Any = None,
        process_group: Optional[Any] = None,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__()
        if device_ids is not None and len(device_ids) != 1:
            raise _tensors.invalid("device_ids: one device a process")
        self.module = module
        self.device = torch.device(device_ids[0]) if device_ids else None
        self.output_device = output_device
        self._made: list[Attachment] = []  # in a list: not a part of the module's state
        self._asked = {k: v for k, v in settings.items() if k not in _REDUCERS}
        self._asked.setdefault("broadcast", "yes" if init_sync else "no")
        self._buffers_mode = "average" if broadcast_buffers else "local"
        self._group = process_group
        if optimizer is not None:
            self._attach(optimizer)

    def _attach(self, optimizer: Optimizers) -> None:
        self._made.append(
            Attachment(self.module, optimizer, self._buffers_mode, True, self._group, self._asked)
        )

    @property
    def attachment(self) -> Optional[Attachment]:
        """The attachment: finish(), synchronize(), summary(). None until attached."""
        return self._made[0] if self._made else None

    def _attach_late(self) -> None:
        self._attach(optimizers_of(self.module) or None)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward, inputs moved to its device."""
        if not self._made and torch.is_grad_enabled():
            not_traced(self._attach_late)
        if self.device is not None:
            inputs, kwargs = torch.utils._pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(self.device), (inputs, kwargs)
            )
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients of the passes inside to this rank; they add up in ``.grad``."""
        if not self._made:
            self._attach_late()
        with self._made[0].no_sync():
            yield

    @contextmanager
    def join(
        self, divide_by_initial_world_size: bool = False, enable: bool = True, **_: Any
    ) -> Iterator[None]:
        """An epoch with uneven numbers of batches: a rank that ran out takes part without weight.

        Means are over the ranks that still have batches, whatever ``divide_by_initial_world_size``
        says.
        """
        yield
        if enable and self._made:
            self._made[0].join()

    def finish(self) -> None:
        """End of training: all ranks hold the same bits afterwards."""
        if self._made:
            self._made[0].finish()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": [], "_group": None}


class _Buckets(Gradients):
    """Gradients that torch's reducer hands over in its buckets, reduced in their memory."""

    can_be_thin = False
    _open: list[tuple[_Future, torch.Tensor, Optional[torch.Tensor]]]

    def _listen(self) -> list[Any]:
        self._open = []
        self._index = {id(slot.param): index for index, slot in enumerate(self._slots)}
        return []

    def take(self, bucket: Any) -> _Future:
        """Announce a bucket's gradients; with the last one wait for all, of all buckets."""
        if not self.is_begun:
            self._open.clear()
            self._begin()
        buffer = bucket.buffer()
        future: _Future = _device.future_of(buffer)
        dense = None
        if self.mode == EXCHANGE:
            dense = self._announce_bucket(bucket, buffer)
        self._open.append((future, buffer, dense))
        if bucket.is_last():
            self.end()
            self._answer()
        return future

    def _announce_bucket(self, bucket: Any, buffer: torch.Tensor) -> Optional[torch.Tensor]:
        """Returns what stands in for a sparse gradient, which has a bucket of its own."""
        if buffer.layout is not torch.strided:
            param = bucket.parameters()[0]
            dense = self._dense(self._slots[self._index[id(param)]], buffer)
            self._announce_view(param, dense)
            return dense
        for param, view in zip(bucket.parameters(), bucket.gradients()):
            self._announce_view(param, view)
        return None

    def _announce_view(self, param: torch.Tensor, view: torch.Tensor) -> None:
        index = self._index[id(param)]
        slot = self._slots[index]
        if self.fired[index]:
            self._refuse_twice(slot)
        self._note(index, slot, view)

    def _answer(self) -> None:
        for future, buffer, dense in self._open:
            future.set_result(buffer if dense is None else dense.to_sparse(1))
        self._open.clear()


class HookState(Attachment):
    """State of :func:`msdu.comm_hook`, for those who keep torch's DistributedDataParallel.

    ``state = msdu.HookState(ddp, optimizer); ddp.register_comm_hook(state, msdu.comm_hook)``

    It is the attachment as well: finish(), synchronize(), summary(). Gradients are reduced in the
    reducer's buckets; after local steps they are averaged over the ranks of a host, or stay this
    rank's own, and parameters are averaged.
    DDP's broadcast of buffers before each forward is switched off: they are averaged with the
    parameters. With ``find_unused_parameters`` DDP itself still sends one small message a step.

    Args:
        ddp: the wrapped model, on its usual settings.
        optimizer: of torch.optim, or several. None: a step ends when the next pass begins.
        buffers: ``"average"`` or ``"local"``.
        settings: of the library, as for :func:`msdu.attach`; parameters are not broadcast again.

    Raises:
        msdu.Error: as :func:`msdu.attach`; DDP in mixed precision of its own.
    """

    _source = _Buckets

    def __init__(
        self,
        ddp: TorchDDP,
        optimizer: Optimizers = None,
        *,
        buffers: str = "average",
        **settings: Any,
    ) -> None:
        if not isinstance(ddp, TorchDDP):
            raise _tensors.invalid(f"ddp is a {type(ddp).__name__}, not a DistributedDataParallel")
        refuse_kinds(ddp)
        _regroup.refuse(settings, "a trainer that keeps torch's DistributedDataParallel")
        settings.setdefault("broadcast", "no")
        self.ddp = ddp
        super().__init__(ddp.module, optimizer, buffers, False, ddp.process_group, settings)
        ddp.broadcast_buffers = False
        self._put("join", self._joined)
        self._put("join_hook", self._no_join_hook)

    def _put(self, name: str, method: Any) -> None:
        object.__setattr__(self.ddp, name, method)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The same as ``ddp.no_sync()``."""
        with self.ddp.no_sync():
            yield

    @contextmanager
    def _joined(
        self, divide_by_initial_world_size: bool = False, enable: bool = True, **_: Any
    ) -> Iterator[None]:
        """In the place of ``ddp.join``: its shadow of DDP's collectives is not needed."""
        if enable and self.ddp.find_unused_parameters:
            raise _tensors.invalid(
                "ddp.join() with find_unused_parameters: a rank without batches would miss DDP's "
                "own message; use msdu.attach() or msdu.DistributedDataParallel"
            )
        yield
        if enable:
            self.join()

    def _no_join_hook(self, **_: Any) -> Any:
        raise _abi.Error(_abi.ERR_UNSUPPORTED, "Join([ddp, ..]): use ddp.join() or state.join()")


def refuse_kinds(ddp: TorchDDP) -> None:
    """DDP models that cannot be taken over.

    Raises:
        msdu.Error: MSDU_ERR_UNSUPPORTED says why.
    """
    reason = why_not(ddp)
    if reason:
        raise _abi.Error(_abi.ERR_UNSUPPORTED, f"DistributedDataParallel with {reason}")


def why_not(ddp: TorchDDP) -> str:
    """What of a DDP model cannot be taken over; empty: nothing."""
    if getattr(ddp, "mixed_precision", None) is not None:
        return "mixed_precision, which keeps parameters of another type"
    if getattr(ddp, "parameters_to_ignore", None):
        return "parameters that it ignores"
    if getattr(ddp, "device_mesh", None) is not None:
        return "a device mesh"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "delayed allreduce"
    if getattr(ddp, "_use_python_reducer", False):
        return "the python reducer of torch.compile"
    if any(hasattr(param, "_in_backward_optimizers") for param in ddp.module.parameters()):
        return "an optimizer inside the backward pass"
    return ""


def comm_hook(state, bucket):  # type: ignore[no-untyped-def]
    """For ``ddp.register_comm_hook(msdu.HookState(ddp, optimizer), msdu.comm_hook)``.

    Args:
        state: the HookState.
        bucket: a torch.distributed.GradBucket: gradients, flat, of one dtype.

    Returns:
        A future of the flat mean gradients; of this host's or rank's own after local steps.
    """
    if not isinstance(state, HookState):
        raise _tensors.invalid(f"state is a {type(state).__name__}: make an msdu.HookState")
    if state.is_over:
        raise _abi.Error(_abi.ERR_STATE, "a backward pass after finish() or close()")
    source = state._gradients
    assert isinstance(source, _Buckets)
    return source.take(bucket)


# register_comm_hook() compares objects, and annotations are texts in this file
comm_hook.__annotations__.update(bucket=vars(dist)["GradBucket"])
comm_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
