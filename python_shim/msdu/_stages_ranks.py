# SPDX-License-Identifier: Apache-2.0
"""Ranks of a pipeline and of its replicas: who has which device, and who failed."""

from __future__ import annotations

import datetime
import io
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NoReturn, Optional

import torch
import torch.distributed as dist

from . import _abi, _stages_engine
from ._stages_plan import Plan

_GRACE_S = 3.0  # in which a rank that notices a loss, too, says so
# What a rank says at its end, or others of it, beside a rank that it blames, or "!" and why.
_GONE = "!"
_TOGETHER = "?"
_numbers = itertools.count()  # pipelines of this process; ranks make them in the same order


class Ranks:
    """Rank r of R replicas on D devices each is device r % D of replica r // D.

    Args:
        replicas: of the pipeline.
        deadline: seconds that a rank waits for another.

    Attributes:
        rank, count: in torch's default group.
        devices: of a replica.
        replica, device: of this rank.
    """

    def __init__(self, replicas: int, deadline: float) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.replicas = replicas
        self.devices = self.count // replicas
        self.replica, self.device = divmod(self.rank, self.devices)
        self._deadline = deadline
        self._timeout = datetime.timedelta(seconds=deadline)
        self._store = _stages_engine.store(f"msdu_pipeline_{next(_numbers)}")
        self._engines: dict[tuple[int, ...], Any] = {}  # by devices in use: plans may change
        self._columns: dict[int, Any] = {}
        self._everyone = self.group(range(self.count), "gloo")
        self._row = self._everyone
        for number in range(replicas if replicas > 1 else 0):
            made = self.group((self.of(d, number) for d in range(self.devices)), "gloo")
            self._row = made if number == self.replica else self._row
        self._number = torch.zeros((), dtype=torch.float64)
        self._coming: Any = None

    def group(self, ranks: Iterable[int], backend: Optional[str] = None) -> Any:
        """A process group; all ranks call it. None for those outside."""
        return dist.new_group(list(ranks), timeout=self._timeout, backend=backend)

    def of(self, device: int, replica: Optional[int] = None) -> int:
        """The rank that has a device, in this replica unless another is named."""
        return (self.replica if replica is None else replica) * self.devices + device

    def engine(self, plan: Plan) -> Any:
        """The group of this replica's devices in use."""
        used = tuple(plan.devices)
        if used not in self._engines:
            made = [self.group(self.of(d, r) for d in used) for r in range(self.replicas)]
            self._engines[used] = made[self.replica]
        return self._engines[used]

    def columns(self, plan: Plan) -> Any:
        """The group of all replicas' ranks with this rank's device, if that is in use."""
        for device in plan.devices if self.replicas > 1 else ():
            if device not in self._columns:
                ranks = [self.of(device, replica) for replica in range(self.replicas)]
                self._columns[device] = self.group(ranks)
        return self._columns.get(self.device) if self.device in plan.devices else None

    # --- all at once ---

    def gather(self, make: Callable[[], Any]) -> list[Any]:
        """What make() gives on each rank, everywhere.

        Raises:
            Exception: what was raised here. msdu.Error: of another rank, with its number.
        """
        value, problem = _tried(make)
        found: list[Any] = [None] * self.count
        said = None if problem is None else _told(problem)
        with self._together():
            dist.all_gather_object(found, (value, said), group=self._everyone)
        if problem is not None:
            raise problem
        for rank, (_, told) in enumerate(found):
            if told is not None:
                raise _abi.Error(told[0], f"rank {rank}: {told[1]}")
        return [one for one, _ in found]

    def share(self, make: Callable[[], bytes]) -> bytes:
        """What make() gives on rank 0, everywhere; an error, too."""
        value, problem = _tried(make) if self.rank == 0 else (b"", None)
        box = [(value, None if problem is None else _told(problem))]
        with self._together():
            dist.broadcast_object_list(box, 0, group=self._everyone)
        if problem is not None:
            raise problem
        value, told = box[0]
        if told is not None:
            raise _abi.Error(*told)
        return bytes(value)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Over this replica, in place, on the CPU."""
        with self._together():
            dist.all_reduce(values, group=self._row)
        return values

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Over all ranks, in place, on the CPU."""
        with self._together():
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._everyone)
        return values

    def collect(self, own: Mapping[int, Any], owners: Mapping[int, int]) -> dict[int, Any]:
        """What layers' owners have, on rank 0 and on the CPU, one layer after another.

        Args:
            own: by layer, on replica 0; what torch.save() writes.
            owners: device by layer.
        """
        found: dict[int, Any] = {}
        for layer, device in sorted(owners.items()):
            is_owner = self.rank == device  # of replica 0
            if self.rank == 0:
                found[layer] = _loaded(_saved(own[layer]) if is_owner else self._take(device))
            elif is_owner:
                self._give(0, _saved(own[layer]))
        return found

    def carry(
        self,
        before: Mapping[int, int],
        after: Mapping[int, int],
        pack: Callable[[int], Any],
        unpack: Callable[[int, Any], None],
    ) -> None:
        """Layers whose device changes travel, in each replica, one after another.

        Args:
            before, after: devices by layer.
            pack: what belongs to a layer, as torch.save() writes it.
            unpack: takes it.
        """
        for layer in sorted(before):
            old, new = before[layer], after[layer]
            if old != new and self.device == old:
                self._give(self.of(new), _saved(pack(layer)))
            elif old != new and self.device == new:
                unpack(layer, _loaded(self._take(self.of(old))))

    def _give(self, peer: int, data: torch.Tensor) -> None:
        with self.blaming(peer):
            dist.send(torch.tensor([len(data)]), peer, group=self._everyone)
            dist.send(data, peer, group=self._everyone)

    def _take(self, peer: int) -> torch.Tensor:
        size = torch.zeros(1, dtype=torch.int64)
        with self.blaming(peer):
            dist.recv(size, peer, group=self._everyone)
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(data, peer, group=self._everyone)
        return data

    # --- a number from the last stage ---

    def expect(self, device: int) -> None:
        """Before a step: its number may arrive while this rank is still at work, so that who has
        it need not wait for this one."""
        if self.device != device:
            root = self.of(device)
            self._number = torch.zeros((), dtype=torch.float64)
            with self.blaming(root):
                self._coming = dist.irecv(self._number, root, group=self._everyone)

    def tell(self, value: Optional[float], device: int) -> float:
        """A number that one device of this replica has, on all of them, which expect() it."""
        root = self.of(device)
        if self.device != device:
            with self.blaming(root):
                self._coming.wait()
            return float(self._number)
        assert value is not None
        made = torch.tensor(value, dtype=torch.float64)
        sends: list[tuple[int, Any]] = []
        for peer in (self.of(other) for other in range(self.devices) if other != device):
            with self.blaming(peer):
                sends.append((peer, dist.isend(made, peer, group=self._everyone)))
        for peer, work in sends:
            with self.blaming(peer):
                work.wait()
        return value

    def finish(self) -> None:
        """All ranks are here; nothing is under way between them."""
        self.gather(lambda: None)

    # --- failures ---

    @contextmanager
    def blaming(self, peer: int) -> Iterator[None]:
        """What fails inside is the peer's fault, or that of whom the peer blames."""
        try:
            yield
        except _abi.Error:
            raise
        except RuntimeError as problem:
            self.lost(peer, problem)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What fails inside, all ranks are in: it is the fault of one that says nothing."""
        try:
            yield
        except RuntimeError as problem:
            self._say(_TOGETHER)
            self._lost_together(problem)

    def failed(self, problem: BaseException) -> None:
        """This rank ends for a reason of its own: the others shall know."""
        lines = str(problem).splitlines() or [""]
        self._say(f"!{type(problem).__name__}: {lines[0]}")

    def lost(self, peer: int, problem: BaseException) -> NoReturn:
        """A message from or to this peer failed.

        Raises:
            msdu.Error: with the rank that is the cause. MSDU_ERR_TIMEOUT: it is gone or late;
                MSDU_ERR_STATE: it said why.
        """
        self._say(str(peer))
        seen = {self.rank}
        said = ""
        while peer not in seen:
            seen.add(peer)
            said = self._said_by(peer)
            if said == _TOGETHER:
                self._lost_together(problem)
            if not said or said.startswith("!"):
                break
            peer = int(said)
        if said.startswith("!") and said != _GONE:
            raise _abi.Error(_abi.ERR_STATE, f"pipeline: rank {peer} ended: {said[1:]}")
        self._say(_GONE, peer)
        if peer == self.rank:
            text = f"pipeline: the others waited {self._deadline:g} s for this rank {peer} in vain"
            raise _abi.Error(_abi.ERR_TIMEOUT, text) from problem
        self._gone([peer], problem)

    def _lost_together(self, problem: BaseException) -> NoReturn:
        others = [rank for rank in range(self.count) if rank != self.rank]
        end = time.monotonic() + _GRACE_S
        said = {rank: self._said_by(rank, max(end - time.monotonic(), 0.1)) for rank in others}
        for rank, text in said.items():
            if text.startswith("!") and text != _GONE:
                raise _abi.Error(_abi.ERR_STATE, f"pipeline: rank {rank} ended: {text[1:]}")
        gone = [rank for rank in others if said[rank] == _GONE]
        gone = gone or [rank for rank in others if not said[rank]]
        if len(gone) == 1:
            self._say(_GONE, gone[0])
        self._gone(gone or others, problem)

    def _gone(self, ranks: Sequence[int], problem: BaseException) -> NoReturn:
        """One of these, if there are several."""
        names = " or ".join(f"rank {r} (device {r % self.devices} of the plan)" for r in ranks)
        raise _abi.Error(
            _abi.ERR_TIMEOUT,
            f"pipeline: {names} is gone, or did not answer within {self._deadline:g} s",
        ) from problem

    def _say(self, text: str, of: Optional[int] = None) -> None:
        """What ended a rank, in the store; the first word counts."""
        try:
            self._store.compare_set(str(self.rank if of is None else of), "", text)
        except Exception:  # the store is with the rank that is gone
            return

    def _said_by(self, peer: int, seconds: Optional[float] = None) -> str:
        limit = datetime.timedelta(seconds=_GRACE_S if seconds is None else seconds)
        try:
            self._store.wait([str(peer)], limit)
            return str(self._store.get(str(peer)).decode())
        except Exception:  # nothing was said in time, or nobody can be asked
            return ""


def _tried(make: Callable[[], Any]) -> tuple[Any, Optional[Exception]]:
    try:
        return make(), None
    except Exception as problem:  # told to the others, then raised
        return None, problem


def _saved(value: Any) -> torch.Tensor:
    """As bytes."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def _loaded(data: torch.Tensor) -> Any:
    return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=True)


def _told(problem: Exception) -> tuple[int, str]:
    code = problem.code if isinstance(problem, _abi.Error) else _abi.ERR_STATE
    return code, str(problem) or type(problem).__name__
