# SPDX-License-Identifier: Apache-2.0
"""Table and figures of the comparison over ranks of different speeds, from its records."""
from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Sequence

from . import outcome, report, uneven_plan
from .record import Record
from .uneven_plan import CASES, Case, Wanted

NOTES = """\
Time is until DDP's result is reached: its mean over seeds, less (loss: more) their spread. Every
point is a training of its own, whose learning rate falls to zero within it: of a share of DDP's
steps where ranks go on together, of a share of its time where they do not. Between two points the
time is interpolated. Learning rates were searched for every method over the same grid, with a seed
of their own. Ranks are processes on hosts of `bench/lab`; a rank of speed v takes 1 / v of the base
time for a step, by sleeping layer by layer. `exchange` is the time of 2 (H - 1) / H times 4 bytes a
parameter over the link of each of H hosts. `lb-bsp` is DDP with batches by the true speeds.
`daso-rule` is what heat 1.8.0's DASO computes, done on the host by this bench (training/daso.py),
with a fixed interval: heat's own class needs GPUs.
"""


@dataclasses.dataclass(frozen=True)
class Point:
    """Trainings of one length, over seeds."""

    share: float
    seconds: float
    final: float
    spread: float
    seeds: int


@dataclasses.dataclass(frozen=True)
class Row:
    """A method in a case."""

    label: str
    lr: float
    metric: str
    points: tuple[Point, ...]  # shortest first

    def reached_s(self, goal: float) -> float | None:
        """Seconds until the goal, between the two points around it; the shortest training's if
        that reaches it; None if none does."""
        return outcome.reached_at([(one.seconds, one.final) for one in self.points], goal,
                                  self.metric)


def rows_of(records: Sequence[Record], case: str, model: str) -> list[Row]:
    """All methods, DDP first."""
    found = []
    for label in uneven_plan.METHODS:
        groups: dict[float, list[Record]] = {}
        for one in uneven_plan.of(records, "time", case, model, label):
            groups.setdefault(one["share"], []).append(one)
        if not groups:
            continue
        points = sorted((_point(share, group) for share, group in groups.items()),
                        key=lambda point: point.seconds)
        first = next(iter(groups.values()))[0]
        found.append(Row(label, first["lr"], first["metric"], tuple(points)))
    return found


def _point(share: float, group: list[Record]) -> Point:
    finals = [one["final"] for one in group]
    spread = statistics.stdev(finals) if len(finals) > 1 else 0.0
    return Point(share, statistics.fmean(one["wall_s"] for one in group),
                 statistics.fmean(finals), spread, len(finals))


def _cells(row: Row, goal: float, plain: Point) -> tuple[str, ...]:
    digits = 3 if row.metric == "loss" else 2
    seconds = row.reached_s(goal)
    part = None if seconds is None else seconds / plain.seconds
    tried = ", ".join(f"{one.final:.{digits}f} in {one.seconds / plain.seconds:.2f}"
                      for one in row.points)
    at_most = part is not None and seconds == row.points[0].seconds and row.label != "ddp"
    sign = "<= " if at_most else ""
    return (row.label, f"{row.lr:g}", str(min(one.seeds for one in row.points)),
            "not reached" if part is None else f"{sign}{part:.2f}",
            "" if part is None else f"{100 * (1 - part):.0f}", tried)


def table(records: Sequence[Record], case: str, model: str) -> str:
    """All methods of a case."""
    rows = rows_of(records, case, model)
    goal = uneven_plan.target(records, case, model)
    if not rows or goal is None:
        return ""
    plain = rows[0].points[-1]
    metric = "validation loss" if rows[0].metric == "loss" else "test accuracy %"
    head = ("method", "lr", "seeds", "time of DDP's", "% less", f"{metric} in which time")
    return report.table(head, [_cells(row, goal, plain) for row in rows])


def glance(records: Sequence[Record], wanted: Wanted) -> str:
    """Every case beside what was published and aimed at."""
    labels = ("auto", "clock", "shares", "two-level", "lb-bsp", "asp", "ssp")
    rows = []
    for model in wanted.models:
        for name in wanted.cases:
            found = {row.label: row for row in rows_of(records, name, model)}
            goal = uneven_plan.target(records, name, model)
            if goal is None or "ddp" not in found:
                continue
            plain = found["ddp"].points[-1]
            cells = [_cells(found[label], goal, plain)[4] or "no" if label in found else ""
                     for label in labels]
            case = CASES[name]
            rows.append((f"{model}: {case.says}", case.published, case.aim, *cells))
    head = ("% less time than DDP to its result", "published", "aim", *labels)
    return report.table(head, rows) if rows else ""


def _title(name: str, case: Case, model: str) -> str:
    return (f"### {name}: {case.says}\n\n{model}. Published: {case.published}. "
            f"Aim: {case.aim}.\n")


def write(records: Sequence[Record], wanted: Wanted, out: pathlib.Path) -> None:
    """Write out/table.md, and figures where matplotlib is there."""
    if not records:
        return
    parts = ["# Ranks of different speeds\n", report.machines(list(records)), NOTES,
             glance(records, wanted)]
    for model in wanted.models:
        for name, case in CASES.items():
            made = table(records, name, model)
            if made:
                parts += [_title(name, case, model), made]
    parts.append(report.failures(out))
    (out / "table.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from . import uneven_draw
    for model in wanted.models:
        for name in CASES:
            uneven_draw.draw(records, name, model, out / f"{model}-{name}.svg")


