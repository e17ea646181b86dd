# SPDX-License-Identifier: Apache-2.0
"""What of a model is exchanged: its tensors, their memory, and what cannot be exchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Sequence
from typing import Any, Optional

import torch

from . import _abi, _dtensor
from ._device import Host

DTYPES = {
    torch.float32: _abi.FLOAT32,
    torch.float64: _abi.FLOAT64,
    torch.float16: _abi.FLOAT16,
    torch.bfloat16: _abi.BFLOAT16,
}
_RAW = {2: _abi.FLOAT16, 4: _abi.FLOAT32, 8: _abi.FLOAT64}  # moved as bytes, never computed with
_NAME_BYTES = 255


def invalid(text: str) -> _abi.Error:
    """An error of the caller."""
    return _abi.Error(_abi.ERR_INVALID, text)


def is_dense(tensor: torch.Tensor) -> bool:
    """Do its elements fill one piece of memory, in whatever order of dimensions?"""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def label(name: str, tensor: torch.Tensor) -> str:
    """Name of a tensor in the library: with its shape, so that ranks compare shapes too, and which
    part of it this rank has."""
    part = _dtensor.local(tensor)
    text = f"{name} {list(part.shape)}{_dtensor.place(tensor)}"
    if not part.is_contiguous():
        text += f" strides {list(part.stride())}"
    if len(text.encode()) > _NAME_BYTES:
        digest = hashlib.blake2s(text.encode(), digest_size=8).hexdigest()
        text = f"...{digest} {text[-150:]}"
    return text


class Slot:
    """A trained tensor: its parameter, its id in the library, where its memory was last.

    Of a parameter that torch shards this is the rank's part: shape, stride and gradient, too.
    """

    __slots__ = (
        "device",
        "dtype",
        "grad_pointer",
        "id",
        "is_part",
        "is_sparse",
        "keep",
        "name",
        "param",
        "part",
        "pointer",
        "reserve",
        "shape",
        "stride",
    )  # fmt: skip

    def __init__(self, name: str, param: torch.Tensor) -> None:
        if torch.nn.parameter.is_lazy(param):
            raise invalid(f"parameter '{name}' has no shape yet: run a forward pass first")
        self.name = name
        self.param = param
        self.id = -1
        self.part = 0
        self.is_part = _dtensor.is_part(param)
        self.is_sparse = False
        self.reserve: Any = None
        self.note()

    @property
    def tensor(self) -> torch.Tensor:
        """What of the parameter lies in this rank's memory now."""
        return _dtensor.local(self.param) if self.is_part else self.param

    @property
    def grad(self) -> Optional[torch.Tensor]:
        """The same of its gradient."""
        grad = self.param.grad
        return _dtensor.local(grad) if self.is_part and grad is not None else grad

    @grad.setter
    def grad(self, grad: torch.Tensor) -> None:
        self.param.grad = _dtensor.like(grad, self.param) if self.is_part else grad

    def note(self) -> None:
        """Remember where the parameter is and keep that memory alive."""
        param = self.tensor
        self.dtype = param.dtype
        self.shape = param.shape
        self.stride = param.stride()
        self.device = param.device
        self.pointer = param.data_ptr()
        self.grad_pointer = 0
        self.keep = param.detach()

    def check(self) -> None:
        """Can this be exchanged?"""
        param = self.tensor
        if param.dtype not in DTYPES:
            known = ", ".join(str(dtype)[len("torch.") :] for dtype in DTYPES)
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                f"parameter '{self.name}' is {param.dtype}; supported: {known}",
            )
        if param.layout is not torch.strided:
            raise _abi.Error(_abi.ERR_UNSUPPORTED, f"parameter '{self.name}' is sparse itself")
        if not is_dense(param):
            raise invalid(
                f"parameter '{self.name}' of strides {self.stride} has holes or overlaps: make it "
                "contiguous first"
            )

    def moved(self) -> int:
        """The parameter's memory is elsewhere: its address, if it still is the same tensor."""
        param = self.tensor
        if param.shape != self.shape or param.dtype != self.dtype or param.device != self.device:
            raise invalid(
                f"parameter '{self.name}' was {list(self.shape)} {self.dtype} on {self.device} "
                f"when attached and is {list(param.shape)} {param.dtype} on {param.device} now: "
                "attach again after such changes"
            )
        if param.stride() != self.stride:
            raise invalid(
                f"parameter '{self.name}' had strides {self.stride} when attached and has "
                f"{param.stride()} now: attach again after such changes"
            )
        pointer = self.grad_pointer
        self.note()
        self.grad_pointer = pointer
        return self.pointer


def trained(
    model: torch.nn.Module, optimizers: Sequence[Any], frozen_for_now: Container[int] = ()
) -> list[Slot]:
    """Parameters that are exchanged: all of the model's that require a gradient, each once, then
    what the optimizers own besides.

    Args:
        model: with parameters.
        optimizers: which may own more of them.
        frozen_for_now: id() of parameters that are exchanged even if they require none now.
    """
    found: dict[int, Slot] = {}
    for name, param in model.named_parameters():
        if param.requires_grad or id(param) in frozen_for_now:
            found[id(param)] = Slot(name, param)
    frozen = {id(param) for param in model.parameters()} - set(found)
    for index, optimizer in enumerate(optimizers):
        for group, params in enumerate(optimizer.param_groups):
            for at, param in enumerate(params["params"]):
                if id(param) not in found and id(param) not in frozen and param.requires_grad:
                    found[id(param)] = Slot(f"optimizer{index}.group{group}.{at}", param)
    slots = [slot for slot in found.values() if slot.keep.numel() > 0]
    if not slots and any(slot.is_part for slot in found.values()):
        slots = [_nothing(next(iter(found.values())).device)]
    places: dict[int, str] = {}
    for slot in slots:
        slot.check()
        if slot.pointer in places and slot.device.type != "meta":
            raise invalid(
                f"parameters '{places[slot.pointer]}' and '{slot.name}' share memory but are two "
                "parameters: make them one"
            )
        places[slot.pointer] = slot.name
    if not slots:
        raise invalid("the model has no parameter that requires a gradient")
    mark_sparse(model, slots)
    return slots


def _nothing(device: torch.device) -> Slot:
    """In the place of parameters of which this rank has no element: too few rows for all ranks. Its
    group makes the same steps as those that have some."""
    param = torch.nn.Parameter(torch.zeros(1, device=device))
    param.grad = torch.zeros(1, device=device)
    return Slot("msdu: no part of any parameter", param)


_FLAT = "FSDP (FullyShardedDataParallel)"


def refuse_flat(model: torch.nn.Module) -> None:
    """FSDP's first version keeps several parameters in one flat one, of which a rank has a piece.

    Raises:
        msdu.Error: MSDU_ERR_UNSUPPORTED.
    """
    names = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if "FullyShardedDataParallel" in names or sharding_of(model.parameters()) == _FLAT:
        raise _abi.Error(
            _abi.ERR_UNSUPPORTED,
            f"the model is sharded by {_FLAT}, whose flat parameters cannot be attached: shard it "
            f"by FSDP2, {_dtensor.FORM}",
        )


def sharding_of(params: Iterable[torch.Tensor]) -> str:
    """What shards parameters over the ranks; empty: nothing."""
    for param in params:
        if hasattr(param, "_fsdp_flattened") or type(param).__name__ == "FlatParameter":
            return _FLAT
        if _dtensor.is_part(param):
            return "FSDP2 (fully_shard) or another user of DTensor"
    return ""


def mark_sparse(model: torch.nn.Module, slots: Iterable[Slot]) -> None:
    """Embeddings with sparse gradients, also on ranks that do not use them in a step."""
    weights = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse
    }
    for slot in slots:
        slot.is_sparse = id(slot.param) in weights


class Fixed:
    """A tensor that is not exchanged but must start equal: frozen, or an integer buffer.

    The library copies it from rank 0 as plain bytes; memory that it cannot take as it lies (with
    holes, or an odd number of bytes) goes through a copy.
    """

    def __init__(self, name: str, tensor: torch.Tensor, context: Host) -> None:
        self.name = name
        self.tensor = tensor
        self.copy: Optional[torch.Tensor] = None
        raw = tensor
        if not is_dense(tensor) or not self._fits(tensor):
            raw = self.copy = self._staged(tensor, context)
        item = min(raw.element_size(), 8)
        self.dtype = _RAW[2] if item == 1 else _RAW[item]
        self.count = raw.numel() * raw.element_size() // max(item, 2)
        self.pointer = raw.data_ptr()
        self.keep = raw

    @staticmethod
    def _fits(tensor: torch.Tensor) -> bool:
        is_paired = tensor.numel() % 2 == 0 and tensor.data_ptr() % 2 == 0
        return tensor.element_size() > 1 or is_paired

    @staticmethod
    def _staged(tensor: torch.Tensor, context: Host) -> torch.Tensor:
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        staged = context.empty((flat.numel() + -flat.numel() % 8,), torch.uint8).zero_()
        staged[: flat.numel()] = flat
        return staged

    def finish(self) -> None:
        """The broadcast is over: copy back what went through a copy."""
        if self.copy is None:
            return
        size = self.tensor.numel() * self.tensor.element_size()
        with torch.no_grad():
            self.tensor.copy_(self.copy[:size].view(self.tensor.dtype).view(self.tensor.shape))
