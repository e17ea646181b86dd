# SPDX-License-Identifier: Apache-2.0
"""Batches that follow the speed of the ranks: a batch sampler over msdu_next()."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from . import _abi, _tensors
from ._session import Session, attached


class batches(Sampler[list[int]]):  # noqa: N801 - called as a function is
    """Indices of this rank's batches, for ``DataLoader(data, batch_sampler=msdu.batches(..))``.

    In a step all ranks together take ``ranks * batch_size`` samples, the next of one permutation. A
    slow rank takes fewer of them and a fast one more, so that they take the same time; each rank's
    gradient is weighted by its samples. So training is that of one process with batches of
    ``ranks * batch_size``. In an epoch every sample has one rank, and all ranks end it with the same
    step. Where ranks are equally fast each takes ``batch_size``.

    By the clock (setting ``uneven``) each rank takes the next ``batch_size`` samples when it comes:
    every sample still has one rank, and ranks end an epoch after different numbers of steps. Iterate
    to the end of each epoch then.

    Ranks that come and go (setting ``ranks_least``): name this in ``run.keep()``, and loop over
    :meth:`epochs`. What was drawn for a step that came to nothing, by a lost rank or another one, is
    drawn again and divided among the ranks that there are then. While gradients are exchanged each
    sample is in one step that counts. In local steps what a lost rank did since the ranks last met
    is not repeated.

    Every batch is for one step. ``attach()`` comes before the first iteration. The last step of an
    epoch may be short; where it has fewer samples than there are ranks, a rank that would have none
    gets one that counts nothing.

    Args:
        n: samples of the data set, the same on all ranks.
        batch_size: samples of a rank in a step where all are equally fast.
        shuffle: by a permutation that seed and epoch determine, as DistributedSampler's; else in
            order. Data that are sorted need it: which samples a fast rank gets is not random else.
        seed: the same on all ranks.
        drop_last: leave the samples out that fill no whole step.
        ahead: batches that are fetched before their step, at most 64. With workers a loader fetches
            ``num_workers * prefetch_factor``, and the one in hand. A larger value follows changes of
            speed later. The same on all ranks.
        attachment: what :func:`msdu.attach` returned; needed if there are several.

    Raises:
        msdu.Error: when iterated: nothing is attached, no whole step, more batches ahead than
            ``ahead``, setting ``commit=tensor``, or by the clock an epoch that was left early.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        ahead: int = 16,
        attachment: Optional[Session] = None,
    ) -> None:
        for name, value, least in (("n", n, 1), ("batch_size", batch_size, 1), ("ahead", ahead, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise _tensors.invalid(f"batches: {name} {value!r} is not an integer >= {least}")
        self.n = n
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._attachment = attachment
        self._work = _abi.Work(size=ctypes.sizeof(_abi.Work), batch=batch_size, ahead=ahead)
        self._from = 0  # position at which the next iteration begins
        self._starts: dict[int, int] = {}  # position of each step's samples, as far as fetched
        self._has_moved = False  # draw from _from on
        self._drawing: Optional[object] = None  # the iteration that goes on

    def set_epoch(self, epoch: int) -> None:
        """The permutation of the next iteration; all ranks tell the same one."""
        if epoch != self.epoch:
            self._from = 0
            self._work.position = 0
            self._starts.clear()
        self.epoch = epoch

    def __len__(self) -> int:
        """Steps of an epoch, the same on all ranks; by the clock, of the average rank."""
        whole = self.batch_size * self._ranks()
        return self.n // whole if self.drop_last else -(-self.n // whole)

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs up to ``count``, from the present one on. Where ranks come and go an epoch comes
        again while samples of it are left: ``for epoch in work.epochs(90): for x, y in loader:``
        """
        while self.epoch < count:
            yield self.epoch
            self._from = self._position() if self._session().group else self.n
            self._starts.clear()
            if self._from == self._total(self._from):
                self.set_epoch(self.epoch + 1)

    def __iter__(self) -> Iterator[list[int]]:
        session = self._session()
        session.drawn.clear()
        work, group, step = self._work, -1, 0
        self._has_moved = True
        mark = self._drawing = object()
        try:
            while True:
                if self._has_moved or group != session.group:
                    group, order = session.group, self._order()
                    step = self._turn(session)
                start = work.position
                session.draw(work)
                if group != session.group:
                    continue
                if work.begin == work.total:
                    return
                self._starts.pop(step - _abi.AHEAD_MOST - 2, None)
                step += 1
                self._starts[step] = work.position
                session.drawn.append(group)
                yield order[work.begin : work.end] or [order[start]]
        finally:
            if self._drawing is mark:
                self._drawing = None

    def _turn(self, session: Session) -> int:
        """To the first samples of the epoch that no step took: as this begins, and where ranks were
        lost or joined, with what was drawn for steps that came to nothing. Returns the step."""
        self._refuse_clock(session)
        work, step = self._work, session.next_step
        if self._has_moved:
            position, self._from = self._from, 0
        else:
            position = self._starts.get(step, work.position)
        self._has_moved = False
        work.total = self._total(position)
        if work.total == 0:
            raise _tensors.invalid(
                f"batches: {self.n} samples fill no step of {session.ranks} ranks with "
                f"{self.batch_size} each: drop_last leaves none"
            )
        work.position, work.step = min(position, work.total), step
        self._starts = {step: work.position}
        return step

    def _total(self, position: int) -> int:
        """Where the epoch ends that is there now."""
        whole = self.batch_size * self._ranks()
        return position + (self.n - position) // whole * whole if self.drop_last else self.n

    def _position(self) -> int:
        """Samples of this epoch that steps took."""
        if not self._starts:
            return self._from or int(self._work.position)
        return self._starts.get(self._session().next_step, int(self._work.position))

    def state_dict(self) -> dict[str, Any]:
        """Where training is, between steps: a run that goes on trains with the rest of the epoch.

        Batches that were fetched and not trained with count as left. The same on all ranks.

        Raises:
            msdu.Error: by the clock (setting ``uneven``) there is no position that all ranks share.
        """
        if any(one.summary().state == "clock" for one in self._open()):
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                "batches: by the clock (setting uneven) ranks are in different places of an epoch",
            )
        return {**self._facts(), "epoch": self.epoch, "position": self._position()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where state_dict() was taken: with the next iteration, in its epoch.

        Raises:
            msdu.Error: the state is of other data or of other batches.
        """
        for name, value in self._facts().items():
            if state[name] != value:
                raise _tensors.invalid(f"batches: {name} is {value}; the state has {state[name]}")
        place = (state["epoch"], state["position"])
        if self._drawing is not None and place == (self.epoch, self._position()):
            return  # as run.keep() finds it on ranks that were there before
        self.epoch, self._from = place
        self._starts = {}
        self._has_moved = True
        for one in self._open():
            one.distrust_drawn()

    def _refuse_clock(self, session: Session) -> None:
        if session.group and session.where().is_clock:
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                "batches: by the clock (setting uneven) what a lost rank had drawn cannot be given "
                "to others (setting ranks_least)",
            )

    def _facts(self) -> dict[str, Any]:
        names = ("n", "batch_size", "shuffle", "seed", "drop_last")
        return {name: getattr(self, name) for name in names}

    def _order(self) -> list[int]:
        if not self.shuffle:
            return list(range(self.n))
        source = torch.Generator()
        source.manual_seed(self.seed + self.epoch)
        return torch.randperm(self.n, generator=source).tolist()

    def _open(self) -> list[Session]:
        known = attached if self._attachment is None else [self._attachment]
        return [one for one in known if not one.is_over]

    def _session(self) -> Session:
        found = self._open()
        if len(found) == 1:
            return found[0]
        raise _abi.Error(
            _abi.ERR_STATE,
            f"batches: {len(found)} models are attached: "
            + ("attach() comes first" if not found else "say which by attachment="),
        )

    def _ranks(self) -> int:
        """Of the job, even before attach()."""
        found = self._open()
        if found:
            return found[0].ranks
        if dist.is_available() and dist.is_initialized():
            return dist.get_world_size()
        return int(os.environ.get("WORLD_SIZE", "1"))
