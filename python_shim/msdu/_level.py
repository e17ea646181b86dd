# SPDX-License-Identifier: Apache-2.0
"""Optimizer state after join(): what a rank missed that had no more batches.

With mean gradients all ranks make the same updates as long as their optimizers hold the same state.
A rank that joined stepped less often: its momentum must follow, as its parameters did.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import torch

from . import _abi, _device, _dtensor, _rendezvous, _settings, _tensors

_KEPT = ("backend", "deadline_ms", "interface", "job", "ranks", "rank", "rendezvous", "secret",
         "tls_ca", "tls_cert", "tls_key")  # fmt: skip


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> list[tuple[str, torch.Tensor]]:
    """Every floating point tensor of the optimizers' states, in an order that ranks agree on."""
    found = []
    for number, optimizer in enumerate(optimizers):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for at, param in enumerate(params):
            for key, value in sorted(optimizer.state.get(param, {}).items()):
                if isinstance(value, torch.Tensor) and value.dtype in _tensors.DTYPES:
                    part = _dtensor.local(value)
                    if part.numel():
                        found.append((f"optimizer{number}.{at}.{key}", part))
    return found


def _next_port(address: str) -> str:
    """Beside a rendezvous that the attachment itself occupies."""
    parts = urlsplit(address)
    if parts.scheme != "tcp":
        return address
    places = [one.rpartition(":") for one in parts.netloc.split(",")]
    if not all(port.isdigit() for _, _, port in places):
        return address
    return "tcp://" + ",".join(f"{host}:{int(port) + 1}" for host, _, port in places)


@contextmanager
def _connection_only() -> Iterator[None]:
    """Hide variables that would make a training run of this exchange, with a trace of its own."""
    hidden = {
        one.environment: os.environ.pop(one.environment)
        for name, one in _settings.settings().items()
        if name not in _KEPT and one.environment in os.environ
    }
    named = os.environ.get("MSDU_RENDEZVOUS")
    if named:
        os.environ["MSDU_RENDEZVOUS"] = _next_port(named)
    try:
        yield
    finally:
        os.environ.update(hidden)
        if named:
            os.environ["MSDU_RENDEZVOUS"] = named


def needs_level(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Is there an optimizer with state? Equal on all ranks, whatever they did so far."""
    return any(
        not isinstance(one, torch.optim.SGD) or any(g["momentum"] for g in one.param_groups)
        for one in optimizers
    )


def level(
    optimizers: Sequence[torch.optim.Optimizer],
    given: Mapping[str, Any],
    process_group: Any,
    device: torch.device,
    has_all: bool,
) -> None:
    """Make optimizer states equal on all ranks: the mean over those that missed nothing.

    Args:
        optimizers: all of an attachment.
        given: settings as the caller gave them.
        process_group: as the caller gave it.
        device: of the parameters.
        has_all: did this rank step in every step of the epoch?

    Raises:
        msdu.Error: a rank's optimizer has no state yet, or another one's.
    """
    settings = {name: given[name] for name in _KEPT if name in given}
    settings.setdefault("backend", _device.kind_of(device).backend)
    settings["job"] = f"{settings.get('job', 'msdu')}-join"
    if settings.get("rendezvous"):
        settings["rendezvous"] = _next_port(settings["rendezvous"])
    with _connection_only():
        found, store = _rendezvous.place(settings, process_group)
        settings.update(found)
        given = {**settings, "broadcast": "no", "check_finite": "no"}
        context = _device.kind_of(device)(given, device, store)
        context.members = _rendezvous.members(process_group)
        try:
            _average(context, _states(optimizers), has_all)
        finally:
            context.destroy()


def _average(context: _device.Host, states: list[tuple[str, torch.Tensor]], has_all: bool) -> None:
    model = context.empty((2,), torch.float64).zero_()  # the library wants one
    context.add(
        "model", model[0:].data_ptr(), model[1:].data_ptr(), 1, _abi.FLOAT64, _abi.ROLE_MODEL, 0
    )
    # copies also because some may be elsewhere: torch keeps steps on the host
    copies = [context.empty(state.shape, state.dtype) for _, state in states]
    for (name, state), copy in zip(states, copies):
        copy.copy_(state.detach())
        kind = _tensors.DTYPES[copy.dtype]
        place = (copy.data_ptr(), 0, copy.numel())
        context.add(_tensors.label(name, copy), *place, kind, _abi.ROLE_BUFFER, 0)
    context.settle()
    context.start()
    context.call(context.lib.set_weight, 1.0 if has_all else 0.0)
    context.call(context.lib.finish)
    with torch.no_grad():
        for (_, state), copy in zip(states, copies):
            state.copy_(copy)
