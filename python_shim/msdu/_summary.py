# SPDX-License-Identifier: Apache-2.0
"""What a run did so far: a summary, a bounded history, one line for a progress bar, a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from . import _abi

if TYPE_CHECKING:
    import torch

    from ._attach import Attachment

# Bits of an element on the wire by format, scales not counted (src/wire of the library).
_BITS = {
    "float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "int4": 4, "int2": 2,
    "sparse": 1,  # three quarters
}  # fmt: skip
_ROWS = 4096
_WAITED_ROWS = 32  # of what progress() and plot() say was waited


@dataclass(frozen=True)
class Summary:
    """Counters of one rank, as msdu_summary of msdu.h.

    Attributes:
        steps: iterations ended.
        rounds: synchronizations completed.
        bytes_sent: payload that this rank sent.
        bytes_plain: what the plain script would send: an allreduce, in the tensors' types, for
            each backward pass that it reduces.
        wait_ns: time blocked in the library, nanoseconds.
        elapsed_ns: time since the start, nanoseconds.
        plan_renewals: times the order of slices was renewed.
        interval_steps: h of the last round.
        drift: relative drift of the last round.
        divergence: gradient divergence of the last round, 1 .. ranks.
        rank: this rank.
        ranks: size of the group.
        wire: number format of the last round.
        domain: what is synchronized now.
        interval: the policy.
        reason: the policy's last reason.
        cpu_ns: processor time of the communication thread, nanoseconds; threads of the backend
            come on top.
        slice_bytes: largest slice now.
        window: slices in flight now.
        slice_cuts: times slices, window or lanes were chosen anew.
        lanes: lanes in use now.
        missed: rounds by the clock in which this rank had ended no step in time (``uneven="clock"``);
            it came in a later one.
        network_ns: what the rank that waited least waited in each round, for the network; nanoseconds.
        straggler_ns: what ranks waited more, on average, for slower ones; nanoseconds.
        common_steps: steps of the average rank.
        state: how ranks synchronize now: ``exact``, ``local`` or ``clock``.
        bytes_inside: payload that this rank gave to ranks of its host.
        hosts: hosts of the job; 0: not known yet.
        carriers: ranks of each that exchange local steps for all of it; 0: all ranks are one group.
        gradient_ranks: over which gradients are averaged now: all, in local steps those of this
            host, or this rank alone.
        epoch: number of the present group of ranks (``ranks_least``); 0: the group is fixed.
        ranks_lost: ranks that were lost, as far as this one was there.
        ranks_joined: and that joined.
        sent_steps: h of most rounds so far; 0: there was none.
        sent_wire: their number format.
        sent_domain: what they synchronized.
    """

    steps: int
    rounds: int
    bytes_sent: int
    bytes_plain: int
    wait_ns: int
    elapsed_ns: int
    plan_renewals: int
    interval_steps: int
    drift: float
    divergence: float
    rank: int
    ranks: int
    wire: str
    domain: str
    interval: str
    reason: str
    cpu_ns: int = 0
    slice_bytes: int = 0
    window: int = 0
    slice_cuts: int = 0
    lanes: int = 0
    missed: int = 0
    network_ns: int = 0
    straggler_ns: int = 0
    common_steps: int = 0
    state: str = "exact"
    bytes_inside: int = 0
    hosts: int = 0
    carriers: int = 0
    gradient_ranks: int = 1
    epoch: int = 0
    ranks_lost: int = 0
    ranks_joined: int = 0
    sent_steps: int = 0
    sent_wire: str = ""
    sent_domain: str = ""

    @property
    def waited(self) -> float:
        """Share of the time that was spent waiting, 0 .. 1."""
        return self.wait_ns / self.elapsed_ns if self.elapsed_ns else 0.0

    @property
    def fewer(self) -> float:
        """How many times fewer bytes than an allreduce a step; 1 if none was sent."""
        return self.bytes_plain / self.bytes_sent if self.bytes_sent else 1.0

    @property
    def cpu_s_per_gb(self) -> float:
        """Processor time of the communication thread, seconds for each GB sent; 0 if none was."""
        return self.cpu_ns / self.bytes_sent if self.bytes_sent else 0.0

    @property
    def compared(self) -> str:
        """The bytes beside those of the plain script, in words."""
        if self.fewer < 1.0:
            return f"{1 / self.fewer:.1f} times more than plain"
        return f"{self.fewer:.1f} times fewer than plain"

    @property
    def _missing(self) -> str:
        return f" ({self.missed} missed)" if self.missed else ""

    def __str__(self) -> str:
        steps, wire, domain = self.sent_steps, self.sent_wire, self.sent_domain
        if not wire:
            steps, wire, domain = self.interval_steps, self.wire, self.domain
        return (
            f"rank {self.rank} of {self.ranks}: {self.steps} steps, {self.rounds} rounds{self._missing}, "
            f"h {steps} ({self.interval}), {wire}, {domain} domain\n"
            f"sent {self.bytes_sent / 1e6:.3f} MB, {self.compared}; "
            f"waited {100 * self.waited:.1f} % of {self.elapsed_ns / 1e9:.1f} s; "
            f"communication thread {self.cpu_s_per_gb:.3g} CPU s for each GB\n"
            f"drift {self.drift:.3g}, divergence {self.divergence:.3g}"
            + (f"; {self.reason}" if self.reason else "")
        )

    @classmethod
    def of(cls, raw: _abi.SummaryStruct, sent: Optional[Sent] = None) -> Summary:
        """From the C struct, which has the latest round, and what was sent before."""
        names = [name for name in cls.__dataclass_fields__ if not name.startswith("sent_")]
        values: dict[str, Any] = {name: getattr(raw, name) for name in names}
        for name, value in values.items():
            if isinstance(value, bytes):
                values[name] = value.decode(errors="replace")
        if sent is not None and sent.plans:
            (steps, wire, domain), _ = sent.plans.most_common(1)[0]
            values.update(sent_steps=steps, sent_wire=wire, sent_domain=domain)
        return cls(**values)


class Sent:
    """What rounds were sent with; the library's counters have the latest one's.

    Attributes:
        plans: rounds by their interval, number format and domain.
    """

    def __init__(self) -> None:
        self.plans: Counter[tuple[int, str, str]] = Counter()
        self._rounds = 0

    def note(self, raw: _abi.SummaryStruct) -> None:
        """The counters after a step."""
        if raw.rounds > self._rounds:
            plan = (raw.interval_steps, raw.wire.decode(), raw.domain.decode())
            self.plans[plan] += raw.rounds - self._rounds
        self._rounds = raw.rounds


def of_allreduce(params: Iterable[torch.Tensor], ranks: int) -> int:
    """Bytes that a rank sends in a ring allreduce of these."""
    size = sum(param.numel() * param.element_size() for param in params)
    return 2 * size * (ranks - 1) // ranks


class Row(NamedTuple):
    """History after one step; counters are since the start."""

    step: int
    interval_steps: int
    wire_bits: int
    bytes_sent: int
    wait_ns: int
    elapsed_ns: int


class History:
    """At most 4096 rows over the whole run: when full, every other one goes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._every = 1

    def add(self, raw: _abi.SummaryStruct) -> None:
        """Note the counters after a step."""
        if len(self.rows) == _ROWS and raw.steps % self._every == 0:
            del self.rows[::2]
            self._every *= 2
        if raw.steps % self._every:
            return
        bits = _BITS.get(raw.wire.decode(), 32)
        self.rows.append(
            Row(raw.steps, raw.interval_steps, bits, raw.bytes_sent, raw.wait_ns, raw.elapsed_ns)
        )

    def waited(self) -> float:
        """Share of time waited over the last rows."""
        return _waited(self.rows, len(self.rows) - 1) if len(self.rows) > 1 else 0.0


def plot(run: Union[Attachment, History, Sequence[Row]], axes: Any = None) -> Any:
    """Draw a run: interval and bits on the wire, bytes sent, and the share of time waited in the
    last 32 rows, over steps.

    Args:
        run: an attachment, or its history.
        axes: three matplotlib axes; None: a new figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import StrMethodFormatter

    history: Any = getattr(run, "history", run)
    rows: list[Row] = list(getattr(history, "rows", history))
    if axes is None:
        _, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 6), layout="constrained")
    steps = [row.step for row in rows]
    axes[0].step(steps, [row.interval_steps for row in rows], where="post", label="interval h")
    bits = [row.wire_bits for row in rows]  # dashed: h and bits are often equal
    axes[0].step(steps, bits, "--", where="post", label="bits on the wire")
    axes[0].set_yscale("log", base=2)
    axes[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes[0].legend()
    axes[1].plot(steps, [row.bytes_sent / 1e6 for row in rows])
    axes[1].set_ylabel("sent, MB")
    # A meeting takes all of a round's wait, so single steps alternate between nothing and much.
    axes[2].plot(steps[1:], [100 * _waited(rows, end) for end in range(1, len(rows))])
    axes[2].set_ylabel("waited, %")
    axes[2].set_xlabel("step")
    return axes[0].figure


def _waited(rows: Sequence[Row], end: int) -> float:
    """Share of time waited over the rows up to that one."""
    first, last = rows[max(0, end + 1 - _WAITED_ROWS)], rows[end]
    spent = last.elapsed_ns - first.elapsed_ns
    return (last.wait_ns - first.wait_ns) / spent if spent else 0.0
