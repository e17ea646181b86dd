# SPDX-License-Identifier: Apache-2.0
"""Parity with torch.distributed: the same training by DistributedDataParallel or by its model
averaging, in the same processes, must give the same parameters."""

from __future__ import annotations

from typing import Any

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import msdu

# h = 1: what DDP does, whatever the policy would like
PLAIN: dict[str, Any] = {"domain": "gradient", "wire": "float32", "interval": "fixed",
                         "interval_steps": 1}  # fmt: skip
LOCAL: dict[str, Any] = {"domain": "parameter", "wire": "float32", "interval": "fixed",
                         "warmup_steps": 0, "overlap": "backward",
                         "second_moments": "own"}  # fmt: skip
STEPS = range(12)
# float32: the mean of three ranks is summed in another order; Adam's root makes more of it
LIMITS = {torch.float32: 2e-5, torch.float64: 1e-12}


def against_ddp(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rank, _ = ranks.join_torch()
    theirs = nets.mlp(dtype)
    wrapped = DDP(theirs)
    nets.train(wrapped, OPTIMIZERS[name](wrapped.parameters()), STEPS, rank, dtype)
    ours = nets.mlp(dtype, seed=1 + rank)  # attach makes the ranks equal
    optimizer = OPTIMIZERS[name](ours.parameters())
    if rank == 0:
        assert torch.equal(nets.flat(ours), nets.flat(nets.mlp(dtype)))
    with msdu.attach(ours, optimizer, **PLAIN):
        nets.train(ours, optimizer, STEPS, rank, dtype)
    return nets.flat(ours), nets.flat(theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_one_step_rounds_equal_ddp(name: str, dtype: torch.dtype) -> None:
    for ours, theirs in ranks.run(against_ddp, name, dtype, ranks=3):
        nets.close_to(ours, theirs, LIMITS[dtype])


def test_two_ranks_equal_ddp_to_the_bit() -> None:
    for ours, theirs in ranks.run(against_ddp, "sgd", torch.float32, ranks=2):
        assert torch.equal(ours, theirs)


# --- accumulation ---


def accumulate(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, no_sync: Any) -> None:
    for step in range(6):
        optimizer.zero_grad()
        for part in range(3):
            if no_sync is not None and part < 2:
                with no_sync():
                    nets.loss_of(model, *nets.batch(rank, 3 * step + part)).backward()
            else:
                nets.loss_of(model, *nets.batch(rank, 3 * step + part)).backward()
        optimizer.step()


def accumulation(has_no_sync: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
    rank, _ = ranks.join_torch()
    theirs = nets.mlp()
    wrapped = DDP(theirs)
    optimizer = OPTIMIZERS["sgd"](wrapped.parameters())
    accumulate(wrapped, optimizer, rank, wrapped.no_sync if has_no_sync else None)
    ours = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](ours.parameters())
    with msdu.attach(ours, optimizer, **PLAIN) as attachment:
        accumulate(ours, optimizer, rank, attachment.no_sync if has_no_sync else None)
        attachment.finish()
        steps = attachment.summary().steps
    return nets.flat(ours), nets.flat(theirs), steps


@pytest.mark.parametrize(("has_no_sync", "wanted"), [(True, 6), (False, 18)])
def test_accumulated_gradients_equal_ddp(has_no_sync: bool, wanted: int) -> None:
    for ours, theirs, steps in ranks.run(accumulation, has_no_sync):
        nets.close_to(ours, theirs, 1e-6)
        assert steps == wanted


def kept_to_the_end() -> tuple[torch.Tensor, torch.Tensor]:
    """All micro-batches in no_sync(): the optimizer's step exchanges what they left."""
    rank, size = ranks.join_torch()
    theirs, ours = nets.mlp(), nets.mlp()
    for model in (theirs, ours):
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        attachment = msdu.attach(model, optimizer, **PLAIN) if model is ours else None
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                loss = nets.loss_of(model, *nets.batch(rank, 2 * step + part))
                if attachment is None:
                    loss.backward()
                else:
                    with attachment.no_sync():
                        loss.backward()
            if attachment is None:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= size
            optimizer.step()
        if attachment is not None:
            assert attachment.summary().steps == 4
            attachment.finish()
            attachment.close()
    return nets.flat(ours), nets.flat(theirs)


def test_micro_batches_alone_are_exchanged_by_the_step() -> None:
    for ours, theirs in ranks.run(kept_to_the_end):
        nets.close_to(ours, theirs, 1e-6)


# --- what happens between backward() and step() ---


def clip_and_schedule(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> list[float]:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    norms = []
    for step in range(10):
        optimizer.zero_grad()
        nets.loss_of(model, *nets.batch(rank, step)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()
        schedule.step()
    return norms


def clipping() -> tuple[Any, ...]:
    rank, _ = ranks.join_torch()
    theirs, ours = nets.mlp(), nets.mlp()
    wrapped = DDP(theirs)
    wanted = clip_and_schedule(wrapped, OPTIMIZERS["adamw"](wrapped.parameters()), rank)
    optimizer = OPTIMIZERS["adamw"](ours.parameters())
    with msdu.attach(ours, optimizer, **PLAIN):
        norms = clip_and_schedule(ours, optimizer, rank)
    return nets.flat(ours), nets.flat(theirs), norms, wanted


def test_clipping_and_schedules_see_the_mean_gradient() -> None:
    results = ranks.run(clipping)
    for ours, theirs, norms, wanted in results:
        nets.close_to(ours, theirs, 1e-5)
        assert norms == pytest.approx(wanted, rel=1e-5)
        assert norms == results[0][2]  # the same on every rank


# --- local steps ---


def meets(step: int, h: int) -> bool:
    """Do ranks meet after this step? The interval is the first round's decision and holds from the
    next one on: after step 0, after step 1, then every h steps."""
    return step == 0 or (step - 1) % h == 0


def against_averager(name: str, period: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    rank, _ = ranks.join_torch()
    theirs, ours = nets.mlp(torch.float64), nets.mlp(torch.float64)
    averaging = PostLocalSGDOptimizer(
        OPTIMIZERS[name](theirs.parameters()), PeriodicModelAverager(period, warmup_steps=1)
    )
    count = 3 * period + 2
    nets.train(theirs, averaging, range(1), rank, torch.float64)
    PeriodicModelAverager(period=1).average_parameters(theirs.parameters())  # see meets()
    nets.train(theirs, averaging, range(1, count), rank, torch.float64)
    optimizer = OPTIMIZERS[name](ours.parameters())
    with msdu.attach(ours, optimizer, **LOCAL, interval_steps=period) as attachment:
        nets.train(ours, optimizer, range(count), rank, torch.float64)
        attachment.wait()
        now = nets.flat(ours)
        attachment.finish()  # the last round is counted a moment after its parameters are free
        rounds = attachment.summary().rounds
    return now, nets.flat(theirs), rounds


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fixed_interval_equals_post_local_sgd(name: str) -> None:
    for ours, theirs, rounds in ranks.run(against_averager, name, 4, ranks=3):
        nets.close_to(ours, theirs, 1e-12)
        assert rounds == 5


def outer_reference(rank: int, size: int, h: int, steps: int) -> torch.Tensor:
    """DiLoCo's rule (arXiv 2311.08105) in plain torch: inner SGD, outer Nesterov."""
    model = nets.mlp(torch.float64)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    anchor = nets.flat(model)
    momentum = torch.zeros_like(anchor)
    for step in range(steps):
        nets.train(model, optimizer, range(step, step + 1), rank, torch.float64)
        if meets(step, h):
            mean = nets.flat(model)
            dist.all_reduce(mean)
            delta = anchor - mean / size
            momentum = 0.6 * momentum + delta
            anchor = anchor - 0.8 * (delta + 0.6 * momentum)
            nn.utils.vector_to_parameters(anchor.clone(), model.parameters())
    return nets.flat(model)


def outer() -> tuple[torch.Tensor, torch.Tensor]:
    rank, size = ranks.join_torch()
    wanted = outer_reference(rank, size, 3, 14)
    model = nets.mlp(torch.float64)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    rules = {"correct": "outer", "outer_lr": 0.8, "outer_momentum": 0.6}
    with msdu.attach(model, optimizer, **LOCAL, **rules, interval_steps=3) as attachment:
        nets.train(model, optimizer, range(14), rank, torch.float64)
        attachment.wait()
        now = nets.flat(model)
    return now, wanted


def test_outer_nesterov_equals_a_plain_reference() -> None:
    for ours, wanted in ranks.run(outer, ranks=3):
        nets.close_to(ours, wanted, 1e-12)


def accumulated() -> tuple[torch.Tensor, torch.Tensor]:
    """Local steps seen through gradients only: SGD's settings are read from the optimizer."""
    rank, _ = ranks.join_torch()
    results = []
    for domain in ("accumulated", "parameter"):
        model = nets.mlp(torch.float64)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        settings = {**LOCAL, "domain": domain, "interval_steps": 4}
        with msdu.attach(model, optimizer, **settings) as attachment:
            nets.train(model, optimizer, range(14), rank, torch.float64)
            attachment.wait()
            results.append(nets.flat(model))
    return results[0], results[1]


def test_the_accumulated_domain_follows_sgd() -> None:
    for by_gradients, by_parameters in ranks.run(accumulated):
        nets.close_to(by_gradients, by_parameters, 1e-10)
