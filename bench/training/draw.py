# SPDX-License-Identifier: Apache-2.0
"""Figures of the comparison: result against bytes, and time to DDP's result against the link."""
from __future__ import annotations

import math
import pathlib
import re
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from . import outcome
from .outcome import Outcome, Problem
from .record import Record

matplotlib.rcParams["svg.hashsalt"] = "msdu"  # the same figure gives the same file
WIRE_COLORS = {"float32": "tab:blue", "bfloat16": "tab:cyan", "int8": "tab:olive",
               "int4": "tab:green", "ternary": "tab:red", "sparse": "tab:purple"}


def save(figure: Any, file: pathlib.Path) -> None:
    """Write a figure as a file that is the same whenever the figure is."""
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _group(one: Outcome) -> tuple[str, str]:
    """Line of the figure that an outcome belongs to, and what is written at its point."""
    if match := re.fullmatch(r"ours-h(\d+)-(\w+?)(-block)?", one.method):
        return f"ours, {match[2]}" + (", blocking" if match[3] else ""), match[1]
    if match := re.fullmatch(r"local-(\d+)", one.method):
        return "local SGD", match[1]
    return one.method, ""


def _error(one: Outcome) -> float:
    return 0.0 if math.isnan(one.spread) else one.spread


def frontier(found: list[Outcome], problem: Problem, file: pathlib.Path) -> None:
    """Result at equal samples against bytes; numbers at points are intervals."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    lines: dict[str, list[tuple[Outcome, str]]] = {}
    for one in found:
        name, text = _group(one)
        lines.setdefault(name, []).append((one, text))
    for name, points in lines.items():
        wire = name.split(", ")[1] if name.startswith("ours, ") else ""
        axes.errorbar([one.fewer for one, _ in points], [one.mean for one, _ in points],
                      [_error(one) for one, _ in points], marker="o", capsize=2, label=name,
                      color=WIRE_COLORS.get(wire), linestyle="none" if len(points) == 1 else
                      "--" if name.endswith("blocking") else "-")
        for one, text in points:
            axes.annotate(text, (one.fewer, one.mean), textcoords="offset points",
                          xytext=(4, 4), fontsize=8)
    ddp = outcome.reference(found)
    if ddp is not None:
        axes.axhspan(ddp.mean - _error(ddp), ddp.mean + _error(ddp), alpha=0.15, color="gray")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("times fewer bytes than a float32 allreduce in every step")
    axes.set_ylabel("validation loss" if problem.metric == "loss" else "test accuracy %")
    axes.set_title(f"{problem.model} on {problem.dataset}, {problem.ranks} ranks")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, file)


def _speeds(found: list[Outcome], problem: Problem, records: list[Record]
            ) -> dict[str, list[tuple[float, float]]]:
    """By method: (ratio, how many times faster than DDP to DDP's result)."""
    ddp = outcome.reference(found)
    speeds: dict[str, list[tuple[float, float]]] = {}
    if ddp is None:
        return speeds
    goal = outcome.target(ddp, problem.metric)
    for pace in outcome.paces(records, problem):
        plain = pace.whole("ddp", ddp.steps)
        for one in found:
            whole = pace.whole(one.method, one.steps)
            samples = outcome.reached_at(one.curve, goal, problem.metric)
            if whole and plain and samples is not None:
                speeds.setdefault(one.label, []).append(
                    (pace.ratio, plain / (whole * samples / one.curve[-1][0])))
        for run in records:
            if (run["purpose"], run["method"], run["rate_mbit"]) != (
                    "whole", "ours", pace.rate_mbit) or outcome.problem_of(run) != problem:
                continue
            seconds = outcome.reached_at(
                zip(run["eval_seconds"], run[f"eval_{problem.metric}"]), goal, problem.metric)
            if seconds and plain:
                speeds.setdefault("ours, whole runs", []).append((pace.ratio, plain / seconds))
    return speeds


def times(found: list[Outcome], problem: Problem, records: list[Record], file: pathlib.Path
          ) -> None:
    """Time to DDP's result; a method that does not reach it is not drawn."""
    speeds = _speeds(found, problem, records)
    if not speeds:
        return
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, points in speeds.items():
        axes.plot([x for x, _ in points], [y for _, y in points], label=name,
                  marker="s" if name.startswith("ours") else "o")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("communication over computation of DDP")
    axes.set_ylabel("times faster than DDP to DDP's result")
    axes.set_title(f"{problem.model} on {problem.dataset}, {problem.ranks} ranks")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, file)


def write(records: list[Record], out: pathlib.Path) -> None:
    """Both figures of every problem, as SVG."""
    for problem in outcome.problems_of(records):
        found = outcome.outcomes(records, problem)
        name = f"{problem.model}-{problem.dataset}"
        if found:
            frontier(found, problem, out / f"{name}-bytes.svg")
            times(found, problem, records, out / f"{name}-time.svg")
