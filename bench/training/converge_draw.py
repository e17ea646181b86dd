# SPDX-License-Identifier: Apache-2.0
"""Figure of a workload: results of all methods against samples, and differences to DDP."""
from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from . import converge_outcome as found
from . import converge_plan as plan
from .converge_outcome import Line
from .draw import pyplot, save
from .record import Record


def _results(axes: Any, lines: Sequence[Line], metric: str) -> None:
    for line in lines:
        axes.plot(line.samples(), [line.mean(metric, i) for i in range(len(line.samples()))],
                  marker="o", label=line.method)
    axes.set_ylabel("test loss" if metric == "loss" else "test accuracy %")
    axes.legend(fontsize=8)


def _gaps(axes: Any, lines: Sequence[Line], ddp: Line, metric: str) -> None:
    for line in lines:
        gaps = [found.gap(line, ddp, metric, i) for i in range(len(line.samples()))]
        axes.errorbar(line.samples(), [one.mean for one in gaps],
                      [0.0 if math.isnan(one.error) else one.error for one in gaps],
                      marker="o", capsize=2, label=line.method)
    axes.set_ylabel("difference to DDP, same seeds")


def write(records: Sequence[Record], out: pathlib.Path) -> None:
    """One of every workload that has DDP's result, as SVG."""
    for work in plan.WORKLOADS.values():
        lines = found.lines_of(records, work.name)
        ddp = found.reference(lines)
        if ddp is None:
            continue
        metric = found.metric_of(ddp)
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
        _results(left, lines, metric)
        _gaps(right, lines, ddp, metric)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("samples trained, the rate at zero at the end of each length")
            axes.grid(alpha=0.3)
        figure.suptitle(f"{work.name}: {work.model} on {work.dataset}")
        save(figure, out / f"{work.name}.svg")
