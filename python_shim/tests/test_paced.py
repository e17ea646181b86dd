# SPDX-License-Identifier: Apache-2.0
"""Schedulers step as often as the average rank did; where ranks are even nothing changes."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
from torch.optim import lr_scheduler

from msdu import _paced

Make = Callable[[torch.optim.Optimizer], Any]


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, 400)
    return lr_scheduler.SequentialLR(optimizer, [warmup, rest], milestones=[20])


def chained(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(optimizer, 0.99), lr_scheduler.StepLR(optimizer, 30, 0.5)]
    )


class Own(lr_scheduler.LRScheduler):
    """A user's, with a step() that goes on to torch's."""

    def step(self, epoch: Any = None) -> None:
        super().step()

    def get_lr(self) -> list[float]:
        return [base * 0.98**self.last_epoch for base in self.base_lrs]


MAKE: dict[str, Make] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 30, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 500),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 50),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=1000),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "own": Own,
}


def optimizer_of() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)


class Fake:
    """A session, as far as schedulers know it."""

    def __init__(self, optimizer: torch.optim.Optimizer, speed: float = 1, even: int = 0) -> None:
        self.optimizers = [optimizer]
        self.speed = speed  # steps for each of the average rank
        self.even = even  # steps until the clock
        self.own = 0

    def where(self) -> _paced.Steps:
        late = max(self.own - self.even, 0)
        common = min(self.own, self.even) + int(late / self.speed)
        return _paced.Steps(self.own >= self.even, self.own, common)

    def step(self) -> None:
        self.optimizers[0].step()
        self.own += 1


def rate(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    group = optimizer.param_groups[0]
    return group["lr"], group["momentum"]


def plain(make: Make, steps: int) -> tuple[float, float]:
    optimizer = optimizer_of()
    scheduler = make(optimizer)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    return rate(optimizer)


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Any:
    steps = {kind: kind.step for kind in _paced._kinds(lr_scheduler.LRScheduler)}
    yield
    _paced._sessions.clear()
    _paced.end(Fake(optimizer_of()))
    for kind, step in steps.items():
        assert kind.step is step, kind


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("speed", [1.0, 0.3, 1.6])
@pytest.mark.parametrize("is_early", [True, False])
def test_schedules_follow_the_average_rank(name: str, speed: float, is_early: bool) -> None:
    optimizer = optimizer_of()
    session = Fake(optimizer, speed, even=40)
    early = MAKE[name](optimizer) if is_early else None
    _paced.begin(session)
    scheduler = early or MAKE[name](optimizer)
    for _ in range(150):
        session.step()
        scheduler.step()
        if session.own <= 40:
            assert rate(optimizer) == plain(MAKE[name], session.own)
    common = session.where().common
    assert (common == 150) == (speed == 1)
    if name != "ChainedScheduler":  # it counts none
        assert scheduler.last_epoch == common
    assert rate(optimizer) == pytest.approx(plain(MAKE[name], common), rel=1e-12)
    _paced.end(session)


@pytest.mark.parametrize("even", [0, 60])
def test_a_scheduler_may_be_made_late(even: int) -> None:
    optimizer = optimizer_of()
    session = Fake(optimizer, 2, even=even)
    _paced.begin(session)
    for _ in range(40):
        session.step()
    before = session.where().common
    scheduler = lr_scheduler.StepLR(optimizer, 10, 0.5)
    assert scheduler.last_epoch == 0
    for _ in range(100):
        session.step()
        scheduler.step()
    assert abs(scheduler.last_epoch - (session.where().common - before)) <= 1
    _paced.end(session)


def test_two_schedulers_that_the_caller_steps_one_after_the_other() -> None:
    optimizer = optimizer_of()
    session = Fake(optimizer, 0.5)
    _paced.begin(session)
    both = [lr_scheduler.ExponentialLR(optimizer, 0.99), lr_scheduler.StepLR(optimizer, 30, 0.5)]
    for _ in range(50):
        session.step()
        for scheduler in both:
            scheduler.step()
    assert [scheduler.last_epoch for scheduler in both] == [100, 100]
    _paced.end(session)


def test_schedulers_of_epochs_are_left_alone() -> None:
    optimizer = optimizer_of()
    session = Fake(optimizer, 0.25, even=10)
    _paced.begin(session)
    by_epoch = lr_scheduler.StepLR(optimizer, 2, 0.5)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for epoch in range(6):
        for _ in range(20):
            session.step()
        by_epoch.step()
        plateau.step(1.0)
        assert by_epoch.last_epoch == epoch + 1
        assert plateau.last_epoch == epoch + 1
    _paced.end(session)


def test_calls_with_an_argument_and_other_optimizers_are_left_alone() -> None:
    optimizer, other = optimizer_of(), optimizer_of()
    session = Fake(optimizer, 0.25)
    _paced.begin(session)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    mine = lr_scheduler.StepLR(other, 2)
    for step in range(5):
        session.step()
        other.step()
        plateau.step(1.0)
        mine.step()
        assert (plateau.last_epoch, mine.last_epoch) == (step + 1, step + 1)
    _paced.end(session)


def test_a_cycle_ends_where_it_was_to_end() -> None:
    optimizer = optimizer_of()
    session = Fake(optimizer, 0.25)
    _paced.begin(session)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    for _ in range(60):  # the average rank has made 240
        session.step()
        scheduler.step()
    assert scheduler.last_epoch == 100
    _paced.end(session)


def test_torch_is_given_back_by_the_last_session() -> None:
    original = lr_scheduler.LRScheduler.step
    first, second = Fake(optimizer_of()), Fake(optimizer_of())
    _paced.begin(first)
    _paced.begin(second)
    assert lr_scheduler.LRScheduler.step is not original
    _paced.end(first)
    _paced.end(first)
    assert lr_scheduler.LRScheduler.step is not original
    _paced.end(second)
    assert lr_scheduler.LRScheduler.step is original
