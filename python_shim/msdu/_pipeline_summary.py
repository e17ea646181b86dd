# SPDX-License-Identifier: Apache-2.0
"""What a pipeline did so far, as values and as a text."""

from __future__ import annotations

import dataclasses

from ._summary import Summary


@dataclasses.dataclass(frozen=True)
class StageSummary:
    """A stage.

    Attributes:
        ranks: that have it, one of each replica.
        first, end: its layers.
        holds: micro-batches whose activations it holds at once, at most; 0: not known.
        memory_bytes: at most, estimated; 0: not known.
        busy, planned_busy: share of a step in which it computes. NaN: not known.
    """

    ranks: list[int]
    first: int
    end: int
    holds: int
    memory_bytes: float
    planned_busy: float
    busy: float


@dataclasses.dataclass(frozen=True)
class PipelineSummary:
    """Counters so far; as a text a table.

    Attributes:
        steps: so far.
        micro_batches, replicas: as given.
        stages: in the order of the forward pass.
        idle: ranks that the plan leaves out.
        step_s, planned_s, bound_s: seconds of a step: measured (median, the slowest rank's), as
            simulated, and what no plan can beat. NaN: not known.
        moves: times that layers changed hands.
        exchanges: with the other replicas, of this rank's stages.
    """

    steps: int
    micro_batches: int
    replicas: int
    stages: list[StageSummary]
    idle: list[int]
    step_s: float
    planned_s: float
    bound_s: float
    moves: int
    exchanges: dict[int, Summary]

    def __str__(self) -> str:
        lines = [" stage  rank        layers        holds     busy  planned      memory"]
        for number, one in enumerate(self.stages):
            layers = f"{one.first}-{one.end - 1} ({one.end - one.first})"
            ranks = ",".join(map(str, one.ranks))
            lines.append(
                f" {number:5}  {ranks:<10}  {layers:<12}  {one.holds:5}  {_share(one.busy):>7}  "
                f"{_share(one.planned_busy):>7}  {one.memory_bytes / 2**20:7.1f} MiB"
            )
        if self.idle:
            lines.append(f"idle: rank {', '.join(map(str, self.idle))}")
        lines.append(
            f"{self.steps} steps of {self.micro_batches} micro-batches: {_seconds(self.step_s)}, "
            f"planned {_seconds(self.planned_s)}, at least {_seconds(self.bound_s)}; "
            f"{self.moves} move{'' if self.moves == 1 else 's'}"
        )
        for number, own in self.exchanges.items():
            lines.append(
                f"stage {number} with its replicas: {own.rounds} rounds, h {own.sent_steps}, "
                f"{own.sent_wire}, {own.bytes_sent / 1e6:.3f} MB sent by this rank"
            )
        return "\n".join(lines)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %" if value == value else "-"


def _seconds(value: float) -> str:
    return f"{value:.4g} s" if value == value else "-"
