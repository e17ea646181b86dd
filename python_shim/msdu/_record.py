# SPDX-License-Identifier: Apache-2.0
"""A model profile from a real run: layers, their tensors, and what their passes take.

A layer is a module that owns trained parameters. The time of a pass is cut into pieces at the
events that hooks see, so that what lies between two layers (an activation, the loss) counts for
the one before it, and nothing is lost; waits of the library do not count.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable, Optional, Union

import torch

from . import _tensors
from ._waits import _inert, _restore

FORMAT = "msdu-profile-1"  # src/predict/profile.h describes the file
_SKIPPED = 3  # passes at first: caches, autotuning, the library's own learning
_NAME_MOST = 255

_log = logging.getLogger("msdu")


def _printable(name: str) -> str:
    """A name as profiles want it: no spaces, at most 255 bytes."""
    plain = "".join(c if "!" <= c <= "~" else "_" for c in name)
    return plain[-_NAME_MOST:] or "model"


class _Hook:
    """A hook of a module; a copied or unpickled model gets one that does nothing."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __call__(self, *given: Any) -> None:
        if not torch.compiler.is_compiling():  # not traced: such a model is not recorded
            self.function(*given)

    def __deepcopy__(self, memo: Any) -> Any:
        return _inert

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, ())


class _Layer:
    """A module with trained parameters of its own, and its times by pass, in seconds."""

    def __init__(self, name: str, module: torch.nn.Module, tensors: list[_tensors.Slot]) -> None:
        self.name = name
        self.module = module
        self.tensors = tensors
        self.left = 0  # gradients that have not come in this pass
        self.forward = 0.0
        self.backward = 0.0
        self.times: list[tuple[float, float]] = []


class Recorder:
    """Hooks that time a model's passes; removed when enough were seen.

    Args:
        model: the model.
        slots: its trained tensors.
        path: where the profile goes.
        passes: forward and backward passes whose median is written.
        about: what the profile says of itself, after "recorded by msdu.attach: ".
        settle: waits until the device has done what it was given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        slots: Iterable[_tensors.Slot],
        path: Union[str, os.PathLike[str]],
        passes: int,
        about: str,
        settle: Callable[[], None],
    ) -> None:
        if passes < 1:
            raise _tensors.invalid(f"record: {passes} passes")
        self._path = Path(path)
        self._path.touch()  # a bad path is an error now, not after an hour
        self._name = _printable(type(model).__name__)
        self._passes = passes
        self._about = about
        self._seen = 0
        self._order: list[_Layer] = []  # by first forward
        self._present: Optional[_Layer] = None  # whose forward piece is open
        self._began = 0.0  # when the open piece did
        self._is_backward = False
        self._is_broken = True  # no pass is under way from its beginning
        self._hooks: list[Any] = []
        self._layers = self._find_layers(model, slots)
        self._settle = settle
        self._listen(model)

    def _find_layers(self, model: torch.nn.Module, slots: Iterable[_tensors.Slot]) -> list[_Layer]:
        """Every trained tensor is in the first module that has it."""
        left = {id(slot.param): slot for slot in slots}
        layers = []
        for name, module in model.named_modules():
            own = [left.pop(id(p)) for p in module._parameters.values() if id(p) in left]
            if own:
                layers.append(_Layer(_printable(name or "model"), module, own))
        return layers

    # --- hooks ---

    def _listen(self, model: torch.nn.Module) -> None:
        add = self._hooks.append
        for layer in self._layers:
            before, begin, after = self._of_layer(layer)
            add(layer.module.register_forward_pre_hook(_Hook(before), prepend=True))
            add(layer.module.register_forward_pre_hook(_Hook(begin)))
            add(layer.module.register_forward_hook(_Hook(after)))
            for slot in layer.tensors:
                add(slot.param.register_post_accumulate_grad_hook(self._on_gradient(layer)))
        # last, so that it is the first of the model's own, which may be a layer's too
        add(model.register_forward_pre_hook(_Hook(self._on_model), prepend=True))

    def _of_layer(self, layer: _Layer) -> tuple[Callable[..., None], ...]:
        def before(*_: Any) -> None:
            if not self._is_broken and not self._is_backward:
                self._close(self._now())  # waits of the library come between this and the next

        def begin(*_: Any) -> None:
            if self._is_broken or self._is_backward:
                return  # a checkpoint computes anew within the backward pass: part of that
            if layer not in self._order:
                self._order.append(layer)
            self._present = layer
            self._began = self._now()

        def after(module: Any, args: Any, output: Any) -> None:
            if not self._is_broken and not self._is_backward:
                for tensor in output if isinstance(output, (tuple, list)) else (output,):
                    if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                        tensor.register_hook(self._on_backward)

        return before, begin, after

    def _now(self) -> float:
        self._settle()
        return time.perf_counter()

    def _close(self, now: float) -> None:
        """The open forward piece ends."""
        if self._present is not None:
            self._present.forward += now - self._began
            self._present = None

    def _on_model(self, *_: Any) -> None:
        """A forward pass of the whole model begins; one that is broken off counts nothing."""
        self._is_broken = not torch.is_grad_enabled() or not self._layers
        self._is_backward = False
        self._present = None
        for layer in self._layers:
            layer.forward = layer.backward = 0.0
            layer.left = len(layer.tensors)

    def _on_backward(self, *_: Any) -> None:
        """The first gradient of an output is there: the loss is done, in both directions."""
        if not self._is_broken and not self._is_backward:
            self._is_backward = True
            now = self._now()
            self._close(now)
            self._began = now

    def _on_gradient(self, layer: _Layer) -> Callable[..., None]:
        def on_gradient(*_: Any) -> None:
            if self._is_broken:
                return
            self._on_backward()
            now = self._now()
            layer.backward += now - self._began
            layer.left -= 1
            self._began = now

        return on_gradient

    # --- the end ---

    def end_pass(self) -> bool:
        """A backward pass is over; true if the profile was written."""
        if self._is_broken or not self._is_backward:
            return False
        self._is_broken = True
        self._seen += 1
        if self._seen > _SKIPPED:
            for layer in self._layers:
                layer.times.append((layer.forward, layer.backward))
        if self._seen < _SKIPPED + self._passes:
            return False
        self.close()
        return True

    def drop(self) -> bool:
        """Take the hooks off; false if they were off."""
        was_on = bool(self._hooks)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        return was_on

    def close(self) -> None:
        """Take the hooks off, and write what there is."""
        if not self.drop():
            return
        if not self._layers or not self._layers[0].times:
            _log.warning("%s: no profile, because no pass was seen to its end", self._path)
            return
        text = json.dumps(self._profile(), indent=1) + "\n"
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(self._path)  # whole or not at all
        _log.info("profile of %d passes written to %s", len(self._layers[0].times), self._path)

    def _profile(self) -> dict[str, Any]:
        passes = len(self._layers[0].times)
        rest = [layer for layer in self._layers if layer not in self._order]
        return {
            "format": FORMAT,
            "name": self._name,
            "compute": f"as recorded, median of {passes} passes",
            "source": f"recorded by msdu.attach: {self._about}, torch {torch.__version__}",
            "layers": [one for layer in self._order + rest for one in _entries(layer)],
        }


def _entries(layer: _Layer) -> list[dict[str, Any]]:
    """A layer of the file; one for each number format, of which the first has the times."""
    dtypes = list(dict.fromkeys(slot.dtype for slot in layer.tensors))
    forward = statistics.median(t[0] for t in layer.times) * 1e6
    backward = statistics.median(t[1] for t in layer.times) * 1e6
    out = []
    for i, dtype in enumerate(dtypes):
        word = str(dtype)[len("torch.") :]
        out.append(
            {
                "name": layer.name if i == 0 else _printable(f"{layer.name}#{word}"),
                "forward_us": round(forward, 3) if i == 0 else 0.0,
                "backward_us": round(backward, 3) if i == 0 else 0.0,
                "dtype": word,
                "tensors": [
                    {"name": _printable(slot.name), "count": slot.keep.numel()}
                    for slot in layer.tensors
                    if slot.dtype is dtype
                ],
            }
        )
    return out
