# SPDX-License-Identifier: Apache-2.0
"""Ranks that draw identical batches train as plain torch does on one of them, bit for bit."""

from __future__ import annotations

from typing import Any

import nets
import ranks
import torch

import msdu

STEPS = 30
SAME = 7  # whose batches all ranks draw
LOCAL: dict[str, Any] = {"wire": "float32", "interval": "fixed", "warmup_steps": 4,
                         "second_moments": "own"}  # fmt: skip


def log_of(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = nets.loss_of(model, *nets.batch(SAME, step))
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def plain(kind: str) -> tuple[list[float], torch.Tensor]:
    model = nets.mlp()
    return log_of(model, nets.OPTIMIZERS[kind](model.parameters())), nets.flat(model)


def attached(runs: list[tuple[str, dict[str, Any]]]) -> list[tuple[list[float], torch.Tensor]]:
    ranks.join_torch()
    logs = []
    for kind, settings in runs:
        model = nets.mlp()
        optimizer = nets.OPTIMIZERS[kind](model.parameters())
        with msdu.attach(model, optimizer, **settings):
            losses = log_of(model, optimizer)
        logs.append((losses, nets.flat(model)))
    return logs


def check(runs: list[tuple[str, dict[str, Any]]], size: int) -> None:
    torch.set_num_threads(1)
    wanted = [plain(kind) for kind, _ in runs]
    for logs in ranks.run(attached, runs, ranks=size):
        for (kind, settings), (losses, parameters), (log, end) in zip(runs, logs, wanted):
            assert losses == log, f"{kind} {settings}"
            assert torch.equal(parameters, end), f"{kind} {settings}"


def test_parameters_keep_their_bits() -> None:
    check([(kind, {**LOCAL, "domain": "auto", "interval_steps": interval})
           for kind in ("sgd", "adam", "adamw") for interval in (1, 2, 4, 7)], 2)  # fmt: skip


def test_in_every_overlap() -> None:
    local = {**LOCAL, "domain": "parameter", "interval_steps": 4}
    check([("adam", {**local, "overlap": overlap})
           for overlap in ("blocking", "backward", "delayed", "streamed")], 4)  # fmt: skip


def test_accumulated_gradients_keep_their_bits() -> None:
    check([("sgd", {**LOCAL, "domain": "accumulated", "interval_steps": 4})], 2)


def test_the_policy_keeps_their_bits() -> None:
    """Whatever it decides: the least target makes it take local steps on any machine."""
    settings = {"wire": "float32", "target_overhead": 1e-4, "second_moments": "own"}
    check([("sgd", settings), ("adam", settings)], 2)
