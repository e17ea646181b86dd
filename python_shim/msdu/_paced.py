# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules of ranks that are in different steps."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

from torch.optim import lr_scheduler


class Steps(NamedTuple):
    """Where a rank is."""

    is_clock: bool  # ranks are in different steps
    own: int  # optimizer steps of this rank
    common: int  # and of the average rank, as of the latest round

    @property
    def average(self) -> int:
        """Of the average rank, now."""
        return self.common if self.is_clock else self.own


class _Calls:
    """What is known of a scheduler. Kept beside it, so its state is torch's."""

    def __init__(self) -> None:
        self.made = 0  # calls that came to torch
        self.ahead = 0  # of these, more than optimizer steps of the average rank
        self.last = 0  # own optimizer steps at the latest call
        self.by_step = 0  # calls with at most one optimizer step since the one before
        self.others = 0

    def begin(self, at: Steps) -> None:
        self.last = at.own
        self.ahead = -at.average

    def note(self, own: int) -> None:
        if own - self.last <= 1:
            self.by_step += 1
        else:
            self.others += 1
        self.last = own

    @property
    def is_by_step(self) -> bool:
        return self.by_step > self.others


_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_calls: weakref.WeakKeyDictionary[Any, _Calls] = weakref.WeakKeyDictionary()
_originals: dict[tuple[Any, str], Callable[..., None]] = {}  # by class and name of the method
_thread = threading.local()


def begin(session: Any) -> None:
    """Pace the schedulers of this session's optimizers, whenever they are made.

    While ranks are in one step nothing changes. By the clock (setting ``uneven``) they take
    different numbers of steps, and schedules would part: so a scheduler steps as often as the
    average rank did, whoever calls it how often. That holds for one that is called about once an
    optimizer step: with at most one since its call before, in most of its calls. One that is
    called once an epoch is left alone, and so is a call with an argument (a metric, an epoch).
    Schedulers inside others follow those.

    Args:
        session: has ``optimizers``, and ``where()``, which returns :class:`Steps`.
    """
    _sessions.add(session)
    _replace(lr_scheduler.LRScheduler, "_initial_step", _unpaced)
    for kind in _kinds(lr_scheduler.LRScheduler):
        _replace(kind, "step", _paced)


def end(session: Any) -> None:
    """Leave this session's schedulers to their callers; the last one gives torch back."""
    _sessions.discard(session)
    if not _sessions:
        for (kind, name), original in _originals.items():
            setattr(kind, name, original)
        _originals.clear()


def _replace(kind: Any, name: str, make: Callable[[Any], Any]) -> None:
    if name in vars(kind) and (kind, name) not in _originals:
        original = _originals[kind, name] = vars(kind)[name]
        setattr(kind, name, functools.wraps(original)(make(original)))


def _kinds(kind: type) -> list[Any]:
    below = [each for child in kind.__subclasses__() for each in _kinds(child)]
    return list(dict.fromkeys([kind, *below]))


def _session_of(scheduler: Any) -> Optional[Any]:
    optimizer = getattr(scheduler, "optimizer", None)
    for session in _sessions:
        if any(own is optimizer for own in session.optimizers):
            return session
    return None


@contextmanager
def _inside() -> Iterator[None]:
    """What a scheduler calls is part of its own step."""
    before = getattr(_thread, "is_inside", False)
    _thread.is_inside = True
    try:
        yield
    finally:
        _thread.is_inside = before


def _unpaced(original: Callable[..., None]) -> Callable[..., None]:
    """A constructor's step."""

    def initial_step(self: Any) -> None:
        with _inside():
            original(self)
        session = _session_of(self)
        if session is not None:
            _calls.setdefault(self, _Calls()).begin(session.where())

    return initial_step


def _paced(original: Callable[..., None]) -> Callable[..., None]:
    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        is_plain = getattr(_thread, "is_inside", False) or args or kwargs
        session = None if is_plain else _session_of(self)
        with _inside():
            if session is None:
                original(self, *args, **kwargs)
            else:
                _step(self, functools.partial(original, self), session.where())

    return step


def _step(scheduler: Any, once: Callable[[], None], at: Steps) -> None:
    calls = _calls.setdefault(scheduler, _Calls())
    calls.note(at.own)
    if not at.is_clock or not calls.is_by_step:
        once()
        calls.made += 1
        calls.ahead = calls.made - at.average
        return
    while calls.made < at.common + calls.ahead and not _is_over(scheduler):
        once()
        calls.made += 1


def _is_over(scheduler: Any) -> bool:
    """OneCycleLR takes no more steps than it was told of."""
    total = getattr(scheduler, "total_steps", None)
    return total is not None and scheduler.last_epoch >= total
