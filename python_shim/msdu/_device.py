# SPDX-License-Identifier: Apache-2.0
"""Where a model's tensors live, and what follows: the backend, memory, streams, what waiting means.

On a GPU nothing here waits for the network or the device unless it says so: the library is told the
stream behind which a tensor has its value, and the stream of whoever reads next is put behind the
library's work. **Never run on a GPU so far**; the tests run it over a stand-in.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable, ClassVar, Optional, Protocol

import torch

from . import _abi, _store
from ._context import Context

_ALIGN = 64


class _Slot(Protocol):  # of _tensors, which needs this module
    name: str
    keep: torch.Tensor
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    stride: tuple[int, ...]


class Reserve(Protocol):
    """What stands in for a gradient that autograd did not make: of an unused parameter, and of
    every parameter while this rank has joined.

    Attributes:
        pointers: addresses, by parameter, that may be announced at any time by a rank that joined.
    """

    pointers: list[int]

    def zeros(self, index: int, slot: Any) -> torch.Tensor:
        """Zeros shaped as the parameter, strides too."""

    def own(self, zeros: torch.Tensor) -> torch.Tensor:
        """The same as a tensor that the trainer may keep."""


class _Pages:
    """Zeros of every trained tensor's size on the host; pages cost nothing until they are used."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        offsets, total = [], 0
        for slot in slots:
            offsets.append(total)
            size = slot.keep.numel() * slot.keep.element_size()
            total += (size + _ALIGN - 1) // _ALIGN * _ALIGN
        self._map = mmap.mmap(-1, total)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._offsets = offsets
        base = self._bytes.data_ptr()
        self.pointers = [base + offset for offset in offsets]

    def zeros(self, index: int, slot: _Slot) -> torch.Tensor:
        """The same memory at every call."""
        count = slot.keep.numel()
        start = self._offsets[index]
        flat = self._bytes[start : start + count * slot.keep.element_size()].view(slot.dtype)
        flat.zero_()
        return flat.as_strided(slot.shape, slot.stride)

    def own(self, zeros: torch.Tensor) -> torch.Tensor:
        return zeros.clone()


class _Fresh:
    """Memory of a device is not given away unused: zeros are made when they are needed. A rank
    that joined names memory which the library neither reads nor writes, a few bytes for all."""

    def __init__(self, slots: Sequence[_Slot], context: Host) -> None:
        self._context = context
        self._anchor = context.empty((_ALIGN,), torch.uint8)
        self.pointers = [self._anchor.data_ptr()] * len(slots)

    def zeros(self, index: int, slot: _Slot) -> torch.Tensor:
        return self._context.empty(slot.shape, slot.dtype, slot.stride).zero_()

    def own(self, zeros: torch.Tensor) -> torch.Tensor:
        return zeros


class Host(Context):
    """A context whose tensors are in the host's memory.

    Attributes:
        backend: where the caller named none.
        unfit: known backends that do not reach such memory.
    """

    backend: ClassVar[str] = "gloo"
    unfit: ClassVar[tuple[str, ...]] = ("nccl",)

    def __init__(
        self,
        given: Mapping[str, Any],
        device: torch.device,
        store: Optional[_store.Store] = None,
    ) -> None:
        super().__init__(given, store=store)
        self.device = device

    # --- memory ---

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, stride: Optional[Sequence[int]] = None
    ) -> torch.Tensor:
        """Memory that the library may be given; contiguous without a stride."""
        if stride is None:
            return torch.empty(shape, dtype=dtype, device=self.device)
        return torch.empty_strided(shape, stride, dtype=dtype, device=self.device)

    def reserve(self, slots: Sequence[Any]) -> Reserve:
        """Stand-ins for gradients that were not made."""
        return _Pages(slots)

    def let_go(self, tensors: list[torch.Tensor]) -> None:
        """Gradients that were announced and waited for: nobody but the trainer keeps them."""
        tensors.clear()

    # --- order ---

    def announce(self, number: int, what: int) -> None:
        """A tensor has its value behind what the current stream was given so far."""
        code = self.lib.tensor_ready(self.handle, number, what)
        if code < 0:
            self.refuse(code)

    def announce_parameters(self, numbers: Iterable[int]) -> None:
        """The step ends: parameters and buffers. Those of the host are taken as they are."""

    def wait(self, number: int, what: int) -> None:
        """From here on the trainer may use a tensor (its current stream may, on a GPU)."""
        self.call(self.lib.tensor_wait, number, what)

    def settle(self) -> None:
        """The host may touch what the trainer's current stream was given so far."""


class Cuda(Host):
    """A context whose tensors are in the memory of one GPU.

    The library sets the thread's current device, which is the trainer's to choose, so it is put
    back after each call. Gradients come on the stream of their part of the backward pass, and the
    end of a pass on that of its caller; torch tells both as the current stream.
    """

    backend = "nccl"
    unfit = ("gloo", "local", "mpi", "mpich", "openmpi")
    place = _abi.PLACE_DEVICE

    def __init__(
        self,
        given: Mapping[str, Any],
        device: torch.device,
        store: Optional[_store.Store] = None,
    ) -> None:
        self._makers: set[int] = set()  # streams that gradients came on since the last wait
        super().__init__(given, device, store)

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def _on_device(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device)

    def call(self, function: Callable[..., int], *args: Any) -> None:
        with self._on_device():
            super().call(function, *args)

    def destroy(self) -> None:
        with self._on_device():
            super().destroy()

    def reserve(self, slots: Sequence[Any]) -> Reserve:
        return _Fresh(slots, self)

    def let_go(self, tensors: list[torch.Tensor]) -> None:
        """The current stream is behind the library's work. Memory that torch counts as another
        stream's, which is not, must not be given away before the current one is done with it."""
        here = self._stream()
        if self._makers - {here.cuda_stream}:
            for tensor in tensors:
                tensor.record_stream(here)
        self._makers.clear()
        tensors.clear()

    def announce(self, number: int, what: int) -> None:
        stream = self._stream().cuda_stream
        self._makers.add(stream)
        self.call(self.lib.tensor_ready_on, number, what, stream)

    def announce_parameters(self, numbers: Iterable[int]) -> None:
        stream = self._stream().cuda_stream
        for number in numbers:
            self.call(self.lib.tensor_ready_on, number, _abi.PARAMETER, stream)

    def wait(self, number: int, what: int) -> None:
        self.call(self.lib.tensor_wait_on, number, what, self._stream().cuda_stream)

    def settle(self) -> None:
        self._stream().synchronize()


_KINDS: dict[str, type[Host]] = {"cpu": Host, "cuda": Cuda}


def kind_of(device: torch.device) -> type[Host]:
    """The kind of context for tensors on a device.

    Raises:
        msdu.Error: no backend reaches it.
    """
    kind = _KINDS.get(device.type)
    if kind is None:
        known = ", ".join(_KINDS)
        raise _abi.Error(
            _abi.ERR_INVALID,
            f"no backend for parameters on {device.type}; there is one for {known}",
        )
    return kind


def future_of(tensor: torch.Tensor) -> torch.futures.Future[Any]:
    """A future that may be given such a tensor."""
    is_host = tensor.device.type == "cpu"
    return torch.futures.Future(devices=None if is_host else [tensor.device])


def check_backend(asked: Optional[str], device: torch.device) -> None:
    """Refuse a backend that does not reach a device's memory, or is not there.

    Args:
        asked: what the caller or the environment named, if anything.
        device: of the parameters.

    Raises:
        msdu.Error: MSDU_ERR_INVALID, or the library's own words for a module that it lacks.
    """
    kind = kind_of(device)
    if asked in kind.unfit:
        raise _abi.Error(
            _abi.ERR_INVALID,
            f'setting backend: "{asked}" does not reach parameters on {device}; leave it out, or '
            f'say "{kind.backend}"',
        )
    if kind.place == _abi.PLACE_HOST:
        return
    try:  # one rank would get the built-in backend at first: ask for the module as two would
        Context({"backend": asked or kind.backend, "ranks": 2, "rank": 0}).destroy()
    except _abi.Error as problem:
        raise _abi.Error(
            problem.code,
            f"parameters are on {device}: {problem} (libmsdu's option MSDU_WITH_NCCL builds the "
            "module)",
        ) from None


def of(named: Iterable[tuple[str, torch.device]]) -> torch.device:
    """The one device of all these tensors.

    Raises:
        msdu.Error: there are several; names one tensor of each.
    """
    found: dict[torch.device, str] = {}
    for name, device in named:
        found.setdefault(device, name)
    if len(found) > 1:
        where = " and ".join(f"'{name}' on {device}" for device, name in found.items())
        raise _abi.Error(
            _abi.ERR_INVALID, f"tensors live on different devices: {where}; attach wants one device"
        )
    return next(iter(found))
