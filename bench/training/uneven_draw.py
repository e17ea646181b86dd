# SPDX-License-Identifier: Apache-2.0
"""Figure of a case of ranks of different speeds: result against time, by method."""
from __future__ import annotations

import pathlib
from collections.abc import Sequence

from . import uneven_plan, uneven_report
from .draw import pyplot, save
from .record import Record

OURS = {"auto", "clock", "shares", "two-level", "flat"}


def draw(records: Sequence[Record], case: str, model: str, file: pathlib.Path) -> None:
    """A point for each length of training; nothing where DDP has no record."""
    rows = uneven_report.rows_of(records, case, model)
    goal = uneven_plan.target(records, case, model)
    if not rows or goal is None:
        return
    whole = rows[0].points[-1].seconds if rows[0].label == "ddp" else 1.0
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for row in rows:
        axes.errorbar([one.seconds / whole for one in row.points],
                      [one.final for one in row.points], [one.spread for one in row.points],
                      marker="s" if row.label in OURS else "o", capsize=2, label=row.label,
                      linestyle="-" if row.label in OURS else "--")
    axes.axhline(goal, color="gray", linewidth=1)
    axes.set_xlabel("time of training, of DDP's")
    axes.set_ylabel("validation loss" if rows[0].metric == "loss" else "test accuracy %")
    axes.set_title(f"{model}: {uneven_plan.CASES[case].says}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, file)
