# SPDX-License-Identifier: Apache-2.0
"""Settings that follow from the model and its optimizers where the caller did not say."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import _abi, _device, _settings
from ._tensors import invalid

_ADAMS = tuple(
    getattr(torch.optim, name)
    for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam")
    if hasattr(torch.optim, name)
)
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")


def _effective(given: Mapping[str, Any], name: str) -> Any:
    """What the library will go by: the environment over the ini file over ``given``. Where it finds
    something wrong with any setting it will say so itself, once a context is made."""
    config = _abi.Config(size=ctypes.sizeof(_abi.Config))
    config.config_file = _settings.config_file(given)
    resolved = _abi.Resolved(size=ctypes.sizeof(_abi.Resolved))
    code = _abi.library().setting_resolve(
        ctypes.byref(config), name.encode(), ctypes.byref(resolved)
    )
    is_said = code == 0 and resolved.origin and not resolved.origin.startswith(b"msdu_config.")
    return resolved.text.decode() if is_said else given.get(name)


def settings(
    given: Mapping[str, Any], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> dict[str, Any]:
    """``given`` and what it leaves open: backend by device, broadcast, check_finite, optimizer.

    Raises:
        msdu.Error: a device without a backend, a backend that does not reach it, or an optimizer
            that the accumulated domain cannot follow.
    """
    chosen = dict(given)
    chosen.setdefault("broadcast", "yes")
    chosen.setdefault("check_finite", "skip")
    _device.check_backend(_effective(given, "backend"), device)
    chosen.setdefault("backend", _device.kind_of(device).backend)
    if (_effective(given, "state") or "local") != "local":
        raise _abi.Error(
            _abi.ERR_UNSUPPORTED,
            "setting state: PyTorch's optimizers make their state in their first step, too late "
            "to be added; only 'local' works here",
        )
    if "optimizer" not in given and optimizers:
        chosen.update(_of_optimizer(optimizers, _effective(given, "domain") == "accumulated"))
    return {name: value for name, value in chosen.items() if value is not None}


def _of_optimizer(optimizers: Sequence[torch.optim.Optimizer], must_follow: bool) -> dict[str, Any]:
    if all(isinstance(one, _ADAMS) for one in optimizers):
        kind = "adam"
    elif all(type(one) is torch.optim.SGD for one in optimizers):
        kind = "sgd"
    else:
        kind = "unknown"
    if not must_follow:
        return {"optimizer": kind}
    if kind != "sgd":
        raise invalid("domain accumulated follows torch.optim.SGD only; use domain parameter")
    groups = [group for one in optimizers for group in one.param_groups]
    values = [{name: group[name] for name in _SGD} for group in groups]
    if any(value != values[0] for value in values) or any(g["maximize"] for g in groups):
        raise invalid(
            "domain accumulated follows one lr, momentum, dampening, weight decay for all "
            "parameter groups; use domain parameter"
        )
    return {"optimizer": kind, **values[0]}


def means_nothing_alone(given: Mapping[str, Any]) -> bool:
    """Would the library change nothing with one rank? Not sure where rules of correction are named
    (an outer optimizer acts on one rank too), the accumulated domain, or a file of settings."""
    return not any(
        _effective(given, name) for name in ("correct", "config_file", "trace_file")
    ) and not (os.environ.get("MSDU_CONFIG") or _effective(given, "domain") == "accumulated")
