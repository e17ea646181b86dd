# SPDX-License-Identifier: Apache-2.0
"""Table and figures of trainings to convergence."""
from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from . import converge_outcome as found
from . import converge_plan as plan
from . import report, store
from .converge_outcome import Estimate, Line
from .record import Record

TABLE = "table.md"
STEPS = "steps.json"

NOTES = """\
All methods see the same samples in the same order from the same first parameters; ranks are threads
of one process that exchange through the library itself. The rate warms up, stays, and falls to zero
over the last fifth of each length. Differences to DDP are those of the same seeds at equal samples,
with their standard error (none with one seed). `train` is the training loss of the last 50 steps:
where it lags as much as the test loss, the method is late rather than worse.

*Step factor*: how many times DDP's samples the method needs to reach what DDP has after a quarter
and after half of all samples; by test loss, or by accuracy where DDP's test loss rises. `at all`:
how many times fewer samples DDP needs for what the method has at the end. Between lengths linear in
the logarithm of samples. `<` and `>` are bounds. `fewer` is how many times fewer bytes than a
float32 allreduce in every step: at equal samples, then to DDP's result after half of all samples.

Times are of real processes over shaped links ([source](steps.json)), `-` where none were measured.
*To DDP's result*: times as fast as DDP, step factor included. *At equal time*: difference to DDP in
the time that DDP takes for a quarter of all samples; `<` or `>`: all samples were trained before.
"""


def text(one: Estimate, digits: int, sign: str = "+") -> str:
    """An estimate as a cell."""
    if math.isnan(one.mean):
        return "-"
    error = "" if math.isnan(one.error) else f" +- {one.error:.{digits}f}"
    return f"{one.bound}{format(one.mean, f'{sign}.{digits}f')}{error}"


def results(lines: Sequence[Line], ddp: Line, metric: str) -> str:
    """A row for each method: differences at each length, and step factors."""
    rows = []
    last = len(ddp.samples()) - 1
    for line in lines:
        cells = [line.method, f"{line.lr:g}", str(len(line.by_seed))]
        for measure, digits in zip(found.MEASURES, (3, 2, 3)):
            for horizon in range(last + 1):
                if line is ddp:
                    cells.append(f"{line.mean(measure, horizon):.{digits}f}")
                else:
                    cells.append(text(found.gap(line, ddp, measure, horizon), digits))
        cells += [text(found.step_factor(line, ddp, horizon, metric), 2, "")
                  for horizon in range(last + 1)]
        half = found.step_factor(line, ddp, max(0, last - 1), metric)
        cells += [f"{line.fewer():.1f}",
                  text(Estimate(line.fewer() / half.mean, bound=found.turned(half.bound)), 1, "")]
        rows.append(cells)
    lengths = [f"{samples / ddp.samples()[-1]:g}" for samples in ddp.samples()]
    head = ["method", "lr", "seeds",
            *(f"{name} {length}" for name in ("loss", "accuracy", "train") for length in lengths),
            *(f"step factor {length}" for length in lengths[:-1]), "at all", "fewer", "to DDP's"]
    return report.table(head, rows)


def times(lines: Sequence[Line], ddp: Line, metric: str, steps: Sequence[dict[str, Any]]) -> str:
    """A row for each method: time over links of each rate that steps were measured on."""
    of = {(one["method"], one["rate_mbit"]): one["step_s"] for one in steps}
    compared = {line.method for line in lines if line is not ddp}
    rates = sorted({rate for method, rate in of if method in compared}, reverse=True)
    if not rates:
        return "Step times of these methods on shaped links were not measured.\n"
    rows = []
    for line in lines:
        cells = [line.method]
        for rate in rates:
            own, plain = of.get((line.method, rate)), of.get(("ddp", rate))
            if own is None or plain is None:
                cells += ["-", "-", "-", "-"]
                continue
            half = found.step_factor(line, ddp, max(0, len(ddp.samples()) - 2), metric)
            speed = Estimate(plain / own / half.mean, bound=found.turned(half.bound))
            measure, digits = ("accuracy", 2) if metric == "accuracy" else ("loss", 3)
            equal = found.at_equal_time(line, ddp, own, plain, measure)
            cells += [f"{own * 1e3:.1f}", f"{plain / own:.2f}", text(speed, 2, ""),
                      text(equal, digits)]
        rows.append(cells)
    head = ["method", *(f"{rate:g} Mbit/s: {name}" for rate in rates for name in (
        "ms a step", "times DDP", "to DDP's result", f"{metric} at equal time"))]
    return report.table(head, rows)


def steps_of(out: pathlib.Path) -> list[dict[str, Any]]:
    """Step times that were taken."""
    file = out / STEPS
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def take_steps(source: pathlib.Path, out: pathlib.Path) -> None:
    """Write step times on shaped links of the same models into out/steps.json, beside those of
    other sources: from a folder of train_table.py, or a file of train.py. The default adapts to the
    link, so its times are of whole runs."""
    records = store.load_all(source) if source.is_dir() else json.loads(
        source.read_text(encoding="utf-8"))
    kept = [one for one in steps_of(out) if one["source"] != str(source)]
    made: dict[tuple[str, str, float], dict[str, Any]] = {}
    for one in records:
        for work in plan.WORKLOADS.values():
            method = _method_of(one)
            if method and one["rate_mbit"] > 0 and _is_same(one, work):
                made[work.name, method, one["rate_mbit"]] = {
                    "workload": work.name, "method": method, "rate_mbit": one["rate_mbit"],
                    "step_s": one["step_median_s"], "source": str(source),
                    "commit": one["commit"], "started": one["started"]}
    rows = sorted([*kept, *made.values()], key=lambda one: (
        one["workload"], one["rate_mbit"], one["method"], one["source"]))
    (out / STEPS).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _method_of(one: Record) -> str:
    """Whose step time a record has; "": nobody's who is compared here."""
    method = str(one["method"]).replace("ternary", "int2")
    if (one["purpose"], method, one["settings"]) == ("whole", "ours", ""):
        return f"replay-{one['ratio']:g}"
    is_ours = method.startswith("ours-h") or method in plan.METHODS
    return method if is_ours and one["purpose"] in ("step", "run") else ""


def _is_same(one: Record, work: plan.Workload) -> bool:
    """Does a step of that run take what one of this workload does?"""
    size = " ".join(f"{name}={value}" for name, value in sorted(work.size) if name != "dropout")
    return (one["model"], one["dataset"], one["size"], one["batch"], one["ranks"]) == (
        work.model, work.dataset, size, work.batch or work.kind.batch, plan.RANKS)


def section(records: Sequence[Record], work: plan.Workload, steps: Sequence[dict[str, Any]]
            ) -> str:
    """All of one workload; "" where nothing was run."""
    lines = found.lines_of(records, work.name)
    ddp = found.reference(lines)
    if ddp is None:
        return ""
    one = next(iter(ddp.by_seed.values()))
    metric = found.metric_of(ddp)
    own = [step for step in steps if step["workload"] == work.name]
    return "\n".join([
        f"## {work.name}: {work.model} on {work.dataset}, {work.aim}\n",
        f"{one['parameters']:,} parameters, {one['ranks']} ranks of batch {one['batch']}, "
        f"{one['epochs']} epochs of {one['samples_per_epoch']:,} samples, {one['optimizer']}. "
        f"DDP's row has its own results. Step factors by {metric}.\n",
        results(lines, ddp, metric), times(lines, ddp, metric, own), searched(records, work)])


def searched(records: Sequence[Record], work: plan.Workload) -> str:
    """Learning rates that were tried, at the shortest length."""
    lines = found.lines_of(records, f"{work.name}-search")
    rows = [(line.method, f"{line.lr:g}", str(len(line.by_seed)), f"{line.mean('loss', 0):.3f}",
             f"{line.mean('accuracy', 0):.2f}") for line in lines]
    return report.table(("search", "lr", "seeds", "loss", "accuracy"), rows) if rows else ""


def write(records: Sequence[Record], out: pathlib.Path) -> None:
    """Write out/table.md, and figures where matplotlib is there."""
    if not records:
        return
    steps = steps_of(out)
    parts = ["# Trainings to convergence\n", report.machines(list(records)), NOTES,
             *(section(records, work, steps) for work in plan.WORKLOADS.values()),
             report.failures(out)]
    (out / TABLE).write_text("\n".join(part for part in parts if part), encoding="utf-8")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from . import converge_draw
    converge_draw.write(records, out)
