# SPDX-License-Identifier: Apache-2.0
"""STAND-IN for a GPU, not a GPU: the package's code for CUDA tensors over the stand-in for CUDA and
NCCL of test/standin, whose device memory is the host's, so that torch's CPU tensors may lie in it.

:func:`use` makes every model that is attached afterwards one "on the device". Torch's kernels are
the CPU's and done at once, which would hide every missing event, so what they give is taken back
and arrives late, by work on a stream of the stand-in: gradients on the stream of the backward pass,
parameters on the trainer's. Whoever does not wait for the stream finds NaN. Memory goes back
when the stream that it was made on, or was recorded for, comes to it, as torch's allocator has it.

What it cannot show: that torch, CUDA and NCCL do as their documentation says.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Optional

import torch

from msdu import _abi, _device, _session, ddp
from msdu._gradients import EXCHANGE, Gradients

_DEVICE_TO_DEVICE = 3
_LATE_S = 0.002  # makes it likely that who does not wait comes too early; nothing depends on it


def folder() -> Optional[Path]:
    """Where the build has put it; None: it was not built."""
    library = os.environ.get("MSDU_LIBRARY")
    found = Path(library).resolve().parents[1] / "test" / "standin" if library else None
    has_module = found is not None and (found / "libmsdu_nccl_standin.so").exists()
    return found if has_module else None


def environment() -> dict[str, str]:
    """For ranks that shall use it."""
    place = str(folder())
    return {"TEST_PLACE": "standin", "TEST_STANDIN": place, "MSDU_MODULE_PATH": place}


class Stream:
    """A stream of the stand-in, as torch shows one."""

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self._cuda = cuda
        handle = ctypes.c_void_p()
        assert cuda.cudaStreamCreate(ctypes.byref(handle)) == 0
        self.cuda_stream = handle.value

    def synchronize(self) -> None:
        assert self._cuda.cudaStreamSynchronize(self.cuda_stream) == 0


class Device:
    """Memory and streams of this process."""

    def __init__(self, path: str) -> None:
        self.cuda = cuda = ctypes.CDLL(str(Path(path) / "libmsdu_standin_cuda.so"))
        handle = ctypes.c_void_p
        cuda.cudaStreamSynchronize.argtypes = [handle]
        cuda.cudaLaunchHostFunc.argtypes = [handle, handle, handle]
        cuda.cudaMemcpyAsync.argtypes = [handle, handle, ctypes.c_size_t, ctypes.c_int, handle]
        cuda.cudaMalloc.argtypes = [ctypes.POINTER(handle), ctypes.c_size_t]
        cuda.standin_is_device.argtypes = [handle, ctypes.c_size_t]
        self.main, self.backward = Stream(cuda), Stream(cuda)
        self.recorded: dict[int, list[Stream]] = {}  # by address, beside the maker
        self._free = ctypes.cast(cuda.cudaFree, handle).value
        self._nap = ctypes.CFUNCTYPE(None, handle)(lambda _: time.sleep(_LATE_S))

    @property
    def current(self) -> Stream:
        """Torch's engine runs a backward pass on streams of its own choice."""
        is_inside = torch._C._current_graph_task_id() != -1
        return self.backward if is_inside else self.main

    def synchronize(self) -> None:
        """Both streams are done."""
        self.backward.synchronize()
        self.main.synchronize()

    def take(
        self, shape: Sequence[int], dtype: torch.dtype, stride: Optional[Sequence[int]] = None
    ) -> torch.Tensor:
        """Device memory, full of garbage."""
        meta = torch.empty(shape, dtype=dtype, device="meta")
        if stride is not None:
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        count = max(meta.untyped_storage().nbytes(), 8)
        address = ctypes.c_void_p()
        assert self.cuda.cudaMalloc(ctypes.byref(address), count) == 0
        memory = (ctypes.c_ubyte * count).from_address(address.value)  # type: ignore[arg-type]
        end = weakref.finalize(memory, self._give, address.value, self.current)
        end.atexit = False
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        used = meta.untyped_storage().nbytes()
        return flat[:used].view(dtype).as_strided(meta.shape, meta.stride())

    def _give(self, address: int, maker: Stream) -> None:
        """Not before the streams come to it."""
        for stream in self.recorded.pop(address, []):
            stream.synchronize()
        self.cuda.cudaLaunchHostFunc(maker.cuda_stream, self._free, address)

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in device memory."""
        with torch.no_grad():
            return self.take(tensor.shape, tensor.dtype, tensor.stride()).copy_(tensor)

    def arrive_late(self, tensor: torch.Tensor) -> None:
        """Its values are taken away and come back in the current stream's turn."""
        stream = self.current.cuda_stream
        values = self.own(tensor)
        with torch.no_grad():
            tensor.fill_(float("nan"))
        size = tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        size = min(size, values.untyped_storage().nbytes())
        self.cuda.cudaLaunchHostFunc(stream, ctypes.cast(self._nap, ctypes.c_void_p), None)
        self.cuda.cudaMemcpyAsync(
            tensor.data_ptr(), values.data_ptr(), size, _DEVICE_TO_DEVICE, stream
        )


device: Any = None  # of this process, once used


class StandIn(_device.Cuda):
    """The package's own code, with the stand-in's streams and memory in the place of torch's."""

    backend = "nccl_standin"
    unfit = ("gloo",)

    def _stream(self) -> Any:
        return device.current

    def _on_device(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def empty(
        self, shape: Sequence[int], dtype: torch.dtype, stride: Optional[Sequence[int]] = None
    ) -> torch.Tensor:
        return device.take(shape, dtype, stride)

    def add(self, name: str, parameter: int, gradient: int, *facts: Any) -> int:
        """Memory of the host is refused here, as a GPU would later."""
        for address in filter(None, (parameter, gradient)):
            assert device.cuda.standin_is_device(address, 1), f"{name} is in the host's memory"
        return super().add(name, parameter, gradient, *facts)

    def wait(self, number: int, what: int) -> None:
        """Torch's CPU kernels are behind no stream: the host waits for it in their place."""
        stream = device.current
        self.call(self.lib.tensor_wait_on, number, what, stream.cuda_stream)
        stream.synchronize()


def _record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    device.recorded.setdefault(tensor.untyped_storage().data_ptr(), []).append(stream)


class _Trainer:
    """A model on the device: its memory, and when its values arrive."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[Any]) -> None:
        self.model = model
        owned = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        self.params = list({id(p): p for p in [*model.parameters(), *owned]}.values())
        self.is_known = bool(list(model.parameters()))  # else the script's, which knows nothing
        self._session: Any = None
        for tensor in (*self.params, *model.buffers()):
            tensor.data = device.own(tensor.data)
        for param in self.params:
            if param.grad is not None:
                param.grad = device.own(param.grad)
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self._on_gradient)
        for module in model.modules():
            module.register_forward_pre_hook(lambda *_: device.synchronize())
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: device.synchronize())
            optimizer.register_step_post_hook(self._on_step)

    def _source(self) -> Any:
        """Where the attachment has its gradients from."""
        if self._session is None:
            self._session = next((s for s in _session.attached if s.model is self.model), None)
        return None if self._session is None else self._session._gradients

    def _on_gradient(self, param: torch.Tensor) -> None:
        source = self._source()
        grad = param.grad
        if grad is None or grad.layout is not torch.strided:
            return
        param.grad = device.own(grad)
        is_exchanged = type(source) is Gradients and source.mode == EXCHANGE
        if is_exchanged and grad.stride() == param.stride() and not self._session.is_closed:
            device.arrive_late(param.grad)

    def _on_step(self, *_: Any) -> None:
        session = self._session
        if self.is_known and session is not None and not session.is_over:
            for param in self.params:
                device.arrive_late(param.detach())


class _Bucket:
    """A bucket of torch's reducer in device memory."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket
        flat = bucket.buffer()
        self._flat = device.own(flat) if flat.layout is torch.strided else flat

    def buffer(self) -> torch.Tensor:
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        begin = self._bucket.buffer().storage_offset()
        return [
            self._flat.as_strided(v.shape, v.stride(), v.storage_offset() - begin)
            for v in self._bucket.gradients()
        ]

    def parameters(self) -> list[torch.Tensor]:
        return list(self._bucket.parameters())

    def is_last(self) -> bool:
        return bool(self._bucket.is_last())


def use() -> None:
    """From now on models of this process are on the device once they are attached."""
    global device
    if device is not None:
        return
    device = Device(os.environ["TEST_STANDIN"])
    _abi.library()
    _device._KINDS["cpu"] = StandIn
    torch.Tensor.record_stream = _record_stream  # type: ignore[method-assign,assignment]
    check, take = _session._check_arguments, ddp._Buckets.take

    def check_arguments(model: Any, optimizers: Sequence[Any], buffers: str) -> None:
        check(model, optimizers, buffers)
        _Trainer(model, optimizers)

    _session._check_arguments = check_arguments
    on_device: Any = lambda self, bucket: take(self, _Bucket(bucket))  # noqa: E731
    ddp._Buckets.take = on_device  # type: ignore[method-assign]
