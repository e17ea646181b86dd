# SPDX-License-Identifier: Apache-2.0
"""Attach the library to a PyTorch model."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Optional, Union

import torch

from . import _abi, _dtensor, _level, _regroup, _tensors
from ._record import Recorder
from ._regroup import Stateful
from ._session import Optimizers, Session, attached
from ._summary import Row, Summary

_FORMAT = 1  # of state_dict()


def attach(
    model: torch.nn.Module,
    optimizer: Optimizers = None,
    *,
    buffers: str = "average",
    unused: bool = True,
    process_group: Optional[Any] = None,
    mesh: Optional[Any] = None,
    record: Optional[Union[str, os.PathLike[str]]] = None,
    **settings: Any,
) -> Attachment:
    """Synchronize a model that is trained by several processes.

    Ranks start from rank 0's parameters and buffers. From then on train as with one process: what
    the optimizer sees after ``backward()`` is the mean gradient, or after local steps the
    parameters are averaged, as the settings say. In local steps ranks of one host still see their
    mean gradient where they share memory, and ``domain`` is auto.

    Args:
        model: every parameter that requires a gradient is synchronized. Not wrapped in
            DistributedDataParallel.
        optimizer: of torch.optim, or several, in the same order on every rank. None: a step ends
            when the next forward or backward pass begins. If all are ``torch.optim.SGD`` itself,
            gradients may go in ``wire="sparse"`` where the network is slow, before local steps are
            taken. Where mean gradients are clipped, which is noticed, they stay in four bits or
            more.
        buffers: ``"average"``: floating point buffers, such as BatchNorm's statistics, are
            averaged with the parameters; ``"local"``: each rank keeps its own.
        unused: parameters may be left out of a backward pass; one that no rank used keeps
            ``grad`` None. False saves a small message each step, and a missing gradient is an
            error.
        process_group: of torch.distributed; None: its default group if there is one, else what
            the launcher says.
        mesh: a DeviceMesh of one dimension instead, such as ``mesh["replicate"]``. A model that
            is sharded over ``mesh["shard"]`` (``fully_shard``, tensor parallelism) is synchronized
            part by part.
        record: file for a profile of the model on this machine: the tensors of every layer and
            the time of its forward and backward pass, as rank 0 measures them (see
            :meth:`Attachment.record`). ``msdu bench overlap --profile FILE`` replays it,
            ``msdu plan --profile FILE`` predicts with it.
        settings: of the library, by name (``msdu.settings()``): ``interval="fixed"``,
            ``interval_steps=8``, ``wire="int4"``. MSDU_* variables win over them. And one of this
            package: ``second_moments``, what those of Adam, AdamW, NAdam and RAdam do in local
            steps, since a rank sees a part of the batch only. ``"mean"``, the default: they are
            led to those of the mean gradient. ``"own"``: as the optimizer does by itself.
            Between steps the optimizer has its own beta2.

    Returns:
        The attachment; call its ``finish()`` at the end of training, or use it in ``with``.

    Raises:
        msdu.Error: with the library's text: a bad setting, ranks that disagree or do not come,
            a parameter that cannot be exchanged.
    """
    group = _dtensor.group_of(mesh, process_group)
    made = Attachment(model, optimizer, buffers, unused, group, settings)
    if record is not None:
        try:
            made.record(record)
        except BaseException:
            made.close()
            raise
    return made


class Attachment(Session):
    """A model under synchronization; made by :func:`msdu.attach`.

    Between ``optimizer.step()`` and the next forward pass the library may still write parameters.
    The model's forward, its ``state_dict()`` and the optimizer wait by themselves; code that
    touches parameters in another way calls :meth:`wait` first.

    Attributes:
        model: the model.
        optimizers: its optimizers.
        rank: of this process; it and `ranks` change with the group (setting ``ranks_least``).
        ranks: how many there are.
        group: number of the present group of ranks (setting ``ranks_least``); 0: it is fixed.
        history: rows of (step, interval_steps, wire_bits, bytes_sent, wait_ns, elapsed_ns).
        has_all: this rank missed no step of the epoch that join() ended last.
    """

    has_all = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep gradients of the passes inside to this rank, as DistributedDataParallel.no_sync().

        They add up in ``.grad`` and are reduced with the first pass outside. A micro-batch is not
        a step.
        """
        before, self._is_synced = self._is_synced, False
        self._is_dirty = True
        self._set_mode()
        try:
            yield
        finally:
            self._is_synced = before
            self._set_mode()

    def exchange(self) -> None:
        """Reduce what :meth:`no_sync` kept to this rank and is in ``.grad`` now.

        The optimizer's step does so by itself; this is for what comes before it, such as clipping.
        In local steps, which reduce nothing, and where nothing was kept, nothing happens.
        """
        if self._is_dirty:
            self._take_by_hand()

    def set_loss(self, loss: Any) -> None:
        """Tell this rank's training loss (policy ``plateau``): a number or a tensor of one.

        A NaN or infinity is not passed on.
        """
        value = float(loss)
        if value - value == 0:
            self._context.call(self._context.lib.set_loss, value)

    def set_weight(self, weight: float) -> None:
        """Weight of this rank in the means from the next step on, such as its batch's size.

        mean = sum of weight times value over ranks, divided by the sum of weights. 1 by default.
        """
        self._context.call(self._context.lib.set_weight, float(weight))

    def join(self) -> None:
        """This rank has no more batches in this epoch: take part with weight 0 until all ranks are
        here. Every rank calls it at the end of an epoch; training goes on afterwards.

        While gradients are exchanged, parameters and the optimizers' states become those of the
        ranks that missed nothing; the latter by a connection of their own (at the next port, where
        ``rendezvous`` names a tcp address). With local steps parameters follow the others' means,
        and optimizer states stay local.
        """
        if self.group and _level.needs_level(self.optimizers):
            raise _abi.Error(
                _abi.ERR_UNSUPPORTED,
                "join(): the optimizer's state cannot follow where ranks come and go (setting "
                "ranks_least): let msdu.batches() divide the samples",
            )
        self._settle()
        before = self._context.summary().steps
        self._gradients.park()
        self._context.call(self._context.lib.join)
        self._follow_group()
        after = self._context.summary()
        self._take(after)
        # joining ends with one step in which no rank had a batch; fewer there are not
        self.has_all = after.steps <= before + 1
        self._plain_bytes += max(after.steps - before - 1, 0) * self._bytes_of_pass()
        self._waits.epoch += 1
        self.wait()
        is_gradient = after.domain == b"gradient" and self.ranks > 1
        if is_gradient and _level.needs_level(self.optimizers):
            device = self._context.device
            _level.level(self.optimizers, *self._given, device=device, has_all=self.has_all)

    def synchronize(self) -> None:
        """Make all ranks equal to the bit now (evaluation, a checkpoint). All ranks call it after
        the same step; training goes on afterwards."""
        self._settle()
        is_done = False
        while not is_done:
            if self._equalized.begin():
                self._meet()
            self._context.call(self._context.lib.synchronize)
            is_done = not self._context.has_regrouped  # else all do so anew, as do newcomers
            self._follow_group()
        self._take(self._context.summary())

    def keep(self, *objects: Stateful) -> None:
        """Where the group changes (setting ``ranks_least``), these take rank 0's state: learning
        rate schedules, samplers, counters; anything with ``state_dict()`` and
        ``load_state_dict()``, in the same order on all ranks. Optimizers do by themselves.

        They do so as the next backward pass begins, for ranks learn of the change at different
        points of their loops; so count what was done behind the optimizer's step. A rank that has
        just joined takes them in this call, and the others wait for that: call it once, before
        the first step.
        """
        if self._equalized.keep(objects):
            self._meet()

    def share(self, value: Any) -> Any:
        """What rank 0 gives, on all ranks: anything that ``torch.load(weights_only=True)`` reads.
        All ranks call it between steps.

        Raises:
            msdu.Error: the group changed meanwhile (setting ``ranks_least``).
        """
        self._settle()
        shared = _regroup.share(self._context, value)
        if self._context.has_regrouped:
            self._follow_group()
            raise _abi.Error(_abi.ERR_STATE, "the group of ranks changed in share()")
        return shared

    def finish(self) -> None:
        """End of training: one exact average, after which all ranks hold the same bits."""
        if self._is_finished:
            return
        self._settle()
        self._context.call(self._context.lib.finish)
        self._is_finished = True
        self.history.add(self._counters())
        self._take_off()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def record(self, path: Union[str, os.PathLike[str]], passes: int = 20) -> None:
        """Measure the next passes and write a model profile; on rank 0, elsewhere nothing.

        A layer is a module with trained parameters. Its forward time lasts from its forward to
        the next layer's, so activations between two layers and the loss belong to the layer before
        them; its backward time from the gradients of the layer before to its own. Time that the
        library waits, and the optimizer's, do not count. On a GPU every event is waited for, so
        steps are slower while recording.

        The file is written after three passes to warm up and ``passes`` more, as their medians,
        or by finish() and close() if the run is shorter. Passes inside no_sync() do not count.

        Args:
            path: of the profile (JSON; src/predict/profile.h of the library describes it).
            passes: forward and backward passes.

        Raises:
            OSError: the file cannot be written.
            msdu.Error: recording already.
        """
        if self._recorder is not None:
            raise _tensors.invalid("record: the last recording is not over")
        if self._is_sharded:
            raise _tensors.invalid("record: torch gathers and reduces within the passes it times")
        if self.rank == 0:
            about = f"rank 0 of {self.ranks}, {self._slots[0].device.type}"
            settle = self._context.settle
            self._recorder = Recorder(self.model, self._slots, path, passes, about, settle)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Synchronization state of this rank for its checkpoint, between steps.

        Each rank saves its own, beside its model's and optimizer's states, which differ between
        ranks after local steps.

        Raises:
            msdu.Error: by the clock (setting ``uneven``), steps since ``synchronize()``. There all
                ranks call that first, because they are in different steps.
        """
        self._settle()
        data = self._context.state()
        return {
            "format": _FORMAT,
            "library": self._context.lib.version_text,
            "rank": self.rank,
            "ranks": self.ranks,
            "steps_alone": self._steps_alone,
            "plain_bytes": self._plain_bytes,
            "data": torch.frombuffer(bytearray(data), dtype=torch.uint8),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where state_dict() was taken: after attach(), before the first step.

        Load this rank's model and optimizer after attach() too, which gives all ranks what rank 0
        has. With a fixed interval the run is then bit-identical to one that was not interrupted.

        Raises:
            msdu.Error: other tensors, settings, rank or number of ranks; after the first step.
        """
        if state.get("format") != _FORMAT:
            raise _tensors.invalid(f"state of format {state.get('format')}, not {_FORMAT}")
        if (state["rank"], state["ranks"]) != (self.rank, self.ranks):
            raise _tensors.invalid(
                f"this is rank {self.rank} of {self.ranks}; the state is of rank {state['rank']} "
                f"of {state['ranks']}"
            )
        data = state["data"].contiguous()
        self._context.call(
            self._context.lib.state_set, ctypes.c_void_p(data.data_ptr()), data.numel()
        )
        self._steps_alone = state["steps_alone"]
        summary = self._context.summary()
        # states of before November 2026 do not have it
        self._plain_bytes = state.get("plain_bytes", summary.steps * self._bytes_of_all)
        self._take(summary)

    # --- seen from outside ---

    def summary(self) -> Summary:
        """Counters so far; after close() those of its moment."""
        if self._context.handle is None:
            return self._last
        return self._summarized()

    def progress(self) -> dict[str, str]:
        """A few words for ``tqdm.set_postfix()``: h, wire, share of time waited, fewer bytes."""
        now = self.summary()
        return {
            "h": str(now.interval_steps),
            "wire": now.wire,
            "waited": f"{100 * self.history.waited():.0f}%",
            "fewer": f"{now.fewer:.1f}x",
        }

    def rows(self) -> list[Row]:
        """The history, at most 4096 rows."""
        return list(self.history.rows)

    @property
    def is_own(self) -> bool:
        """Made by this process, and not the parent's."""
        return self._context.handle is not None or hasattr(self, "_last")

    def __repr__(self) -> str:
        if not self.is_own:
            return "<msdu.Attachment of the parent process>"
        now = self.summary()
        state = "closed" if self.is_closed else "finished" if self._is_finished else "attached"
        return (
            f"<msdu.Attachment rank {now.rank} of {now.ranks}, {state}: {now.steps} steps, "
            f"{now.domain} domain, h {now.interval_steps}, {now.wire}>"
        )


def summary() -> list[Summary]:
    """Summaries of all open attachments of this process."""
    return [one.summary() for one in attached if not one.is_closed]
