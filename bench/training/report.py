# SPDX-License-Identifier: Apache-2.0
"""Tables of the comparison in Markdown, from records; draw.py makes the figures."""
from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Sequence

from . import outcome, store
from .outcome import Outcome, Pace, Problem
from .record import Record

NOTES = """\
Accuracy and bytes come from runs on links that are not shaped, step times from short runs on
shaped links of `bench/lab`; the time of a training is their product, unless a table says *whole
run*. All ranks compute on the cores named above and take turns there, so computing is slower than
on machines of their own, by the same factor for every method. `fewer` is how many times fewer
bytes than a float32 allreduce in every step (2 (N - 1) / N times 4 bytes for each parameter). Bytes
are counted by the kernel on each rank's TCP connections and have all protocol of the method in
them. `not computing` is 1 - the time of a step without any exchange by that of the method's; below
0 the machine was faster than when the former was measured, and `times DDP` of that row is too high
by as much. glibc's allocator keeps what is freed, with every method (training/allocator.py); as it
comes it may cost any of them a quarter of a step, by chance. `+-` is the standard deviation over seeds, `to DDP` the mean difference over the seeds that
both have. The search used seeds of its own; on Tiny-ImageNet every method takes what its search
found for the model on CIFAR-100.

Not in the tables: DASO of heat 1.8.0, which takes the rank modulo the number of GPUs of a node, has
no communicators below two of them, and wants torch below 2.11.1; DDP's bf16 hook, which PyTorch
refuses without NCCL.
"""

GLANCE_NOTE = """\
Results are beside DDP's of the same seeds at equal samples (points of accuracy, or loss); DDP's row
has its own. Speed is how many times as fast as DDP all samples were trained: for `ours`, which
adapts to the link, by whole runs on it, for the others by steps on it.
"""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = ["| " + " | ".join(head) + " |",
             "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def number(value: float | None, digits: int = 2, none: str = "") -> str:
    """A number as text; `none` where there is none."""
    return none if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _with_spread(one: Outcome, digits: int) -> str:
    spread = number(one.spread, digits)
    return number(one.mean, digits) + (f" +- {spread}" if spread else "")


def accuracy_table(found: list[Outcome], problem: Problem) -> str:
    """Every method's result at equal samples."""
    digits = 3 if problem.metric == "loss" else 2
    ddp = outcome.reference(found)
    rows = [(one.label, f"{one.lr:g}", str(len(one.finals)), _with_spread(one, digits),
             number(one.beyond(ddp), digits) if ddp else "", number(one.test_loss, 3),
             number(one.bytes_per_rank / 1e6, 1), number(one.fewer, 1)) for one in found]
    metric = "validation loss" if problem.metric == "loss" else "test accuracy %"
    return table(("method", "lr", "seeds", metric, "to DDP", "test loss", "MB a rank",
                  "fewer"), rows)


def time_table(found: list[Outcome], problem: Problem, pace: Pace) -> str:
    """Times of all methods on links of one rate."""
    ddp = outcome.reference(found)
    if ddp is None:
        return ""
    goal = outcome.target(ddp, problem.metric)
    plain = pace.whole("ddp", ddp.steps)
    if plain is None:
        return ""
    rows = []
    for one in found:
        whole = pace.whole(one.method, one.steps)
        if whole is None:
            continue
        samples = outcome.reached_at(one.curve, goal, problem.metric)
        part = None if samples is None else whole * samples / one.curve[-1][0]
        rows.append((one.label, number(pace.step_s[one.method] * 1e3, 1),
                     number(_percent(pace.waited(one.method)), 1), number(whole, 0),
                     number(plain / whole, 2),
                     number(part, 0, "not reached"),
                     number(None if part is None else plain / part, 2)))
    for method in sorted(pace.step_s.keys() - {one.method for one in found} - {"none"}):
        whole = plain * pace.step_s[method] / pace.step_s["ddp"]
        rows.append((f"{method} (time only)", number(pace.step_s[method] * 1e3, 1),
                     number(_percent(pace.waited(method)), 1), number(whole, 0),
                     number(plain / whole, 2), "", ""))
    head = ("method", "ms a step", "not computing %", "s for all samples", "times DDP",
            "s to DDP's result", "times DDP")
    return table(head, rows)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _course(one: Record) -> str:
    """Interval and bits over the run, as ours chose them: "1x32 2x4@40 ..." (step after @)."""
    steps = one.get("msdu_change_step", [])
    parts = [f"{h}x{bits:g}@{step}" for step, h, bits in zip(
        steps, one["msdu_change_interval"], one["msdu_change_bits"])] if steps else []
    return " ".join(parts if len(parts) <= 6 else [*parts[:3], "...", *parts[-2:]])


GLANCE = ("ddp", "ddp-fp16", "powersgd", "hierarchical", "postlocal", "local-8", "diloco")


def _cell(one: Outcome, ddp: Outcome, more: str) -> str:
    if one is ddp:
        return _with_spread(one, 3 if one.metric == "loss" else 2)
    return f"{one.beyond(ddp):+.{2 if one.metric == 'loss' else 1}f}{more}"


def _side_by_side(by_problem: dict[str, dict[str, str]], order: Sequence[str]) -> str:
    """Cells by problem and label as one table, a column for each problem."""
    rows = [(label, *(cells.get(label, "") for cells in by_problem.values())) for label in order]
    return table(("method", *by_problem), rows)


def _title(problem: Problem) -> str:
    return f"{problem.model} on {problem.dataset}, {problem.metric}"


def _speeds(records: list[Record], problem: Problem, pace: Pace) -> dict[str, str]:
    """A cell for each method: its result beside DDP's, and how many times as fast it is."""
    found = outcome.outcomes(records, problem)
    ddp = outcome.reference(found)
    plain = pace.whole("ddp", ddp.steps) if ddp else None
    if ddp is None or plain is None:
        return {}
    cells = {}
    for one in found:
        whole = pace.whole(one.method, one.steps)
        if one.method in GLANCE and whole is not None:
            cells[one.label] = _cell(one, ddp, f", {plain / whole:.1f} x")
    most: dict[str, Outcome] = {}
    for one in outcome.outcomes(records, problem, "whole"):
        if one.rate_mbit == pace.rate_mbit and one.method.startswith("ours") and (
                one.method not in most or len(one.finals) > len(most[one.method].finals)):
            most[one.method] = one
    return cells | {name: _cell(one, ddp, f", {plain / one.wall_s:.1f} x")
                    for name, one in most.items()}


def glance(records: list[Record]) -> str:
    """All problems side by side: for each ratio result and speed, then result and bytes."""
    problems = outcome.problems_of(records)
    ratios: dict[float, dict[str, dict[str, str]]] = {}
    for problem in problems:
        for pace in outcome.paces(records, problem):
            ratios.setdefault(pace.ratio, {})[_title(problem)] = _speeds(records, problem, pace)
    parts = ["## At a glance\n", GLANCE_NOTE]
    for ratio, by_problem in sorted(ratios.items()):
        order = sorted(dict.fromkeys(label for cells in by_problem.values() for label in cells),
                       key=lambda label: (*GLANCE, label).index(label.split()[0]))
        parts += [f"### Speed at communication / computation {ratio:g}\n",
                  _side_by_side(by_problem, order)]
    fewer: dict[str, list[float]] = {}
    by_problem = {}
    for problem in problems:
        found = outcome.outcomes(records, problem)
        ddp = outcome.reference(found)
        chosen = [one for one in found if ddp and not (one.method == "ours" and one.settings)]
        by_problem[_title(problem)] = {
            one.label: _cell(one, ddp, f" ({one.fewer:.{0 if one.fewer >= 10 else 1}f})")
            for one in chosen if ddp}
        for one in chosen:
            fewer.setdefault(one.label, []).append(one.fewer)
    order = sorted(fewer, key=lambda label: (label != "ddp", sum(fewer[label]) / len(fewer[label])))
    return "\n".join([*parts, "### Bytes: how many times fewer, in brackets\n",
                      _side_by_side(by_problem, order)])


def whole_table(records: list[Record], found: list[Outcome], problem: Problem,
                paces: list[Pace]) -> str:
    """Whole runs on shaped links: what was measured, beside the product."""
    ddp = outcome.reference(found)
    rows = []
    for one in records:
        if one["purpose"] != "whole" or outcome.problem_of(one) != problem:
            continue
        pace = next((p for p in paces if p.rate_mbit == one["rate_mbit"]), None)
        product = pace.whole(one["method"], one["steps"]) if pace else None
        plain = pace.whole("ddp", one["steps"]) if pace else None
        computing = pace.step_s.get("none") if pace else None
        goal = outcome.target(ddp, problem.metric) if ddp else None
        seconds = outcome.reached_at(zip(one["eval_seconds"], one[f"eval_{problem.metric}"]),
                                     goal, problem.metric) if goal is not None else None
        waited = one["msdu_wait_ns"] / one["msdu_elapsed_ns"] if "msdu_wait_ns" in one else None
        rows.append((
            f"{one['method']} {one['settings']}".strip(), f"{one['ratio']:g}", str(one["seed"]),
            number(one["final"], 3 if problem.metric == "loss" else 2),
            number(outcome.plain_bytes(one) / one["bytes_per_rank"], 1),
            number((one["interface_bytes_per_rank"] or 0) / 1e6, 1),
            number(one["wall_s"], 1), number(product, 1),
            number(100 * (one["wall_s"] / product - 1) if product else None, 1),
            number(100 * (1 - computing * one["steps"] / one["wall_s"])
                   if computing else None, 1),
            number(_percent(waited), 1), number(plain / one["wall_s"] if plain else None, 2),
            number(plain / seconds if plain and seconds else None, 2, "not reached"),
            _course(one)))
    head = ("whole run", "ratio", "seed", problem.metric, "fewer", "MB on the link", "s",
            "product s", "off %", "not computing %", "waited %", "times DDP",
            "to DDP's result: times DDP", "interval x bits @ step")
    return table(head, rows) if rows else ""


def search_table(records: list[Record], problem: Problem) -> str:
    """All runs of the search."""
    digits = 3 if problem.metric == "loss" else 2
    rows = [(f"{one['method']} {one['settings']}".strip(), f"{one['lr']:g}", str(one["epochs"]),
             str(one["seed"]), number(one["final"], digits)) for one in records
            if one["purpose"] == "search" and problem == dataclasses.replace(
                outcome.problem_of(one), epochs=problem.epochs)]
    return table(("search", "lr", "epochs", "seed", problem.metric), sorted(rows)) if rows else ""


def _measured(pace: Pace, problem: Problem) -> str:
    """What the ratio was in the hour of these steps: links were set by an earlier one's computing."""
    computing = pace.step_s.get("none")
    if computing is None:
        return ""
    bits = outcome.plain_bits(problem.ranks, problem.parameters)
    return (f"Computing took {computing * 1e3:.1f} ms a step in the hour of these steps, so the "
            f"ratio was {bits / (pace.rate_mbit * 1e6 * computing):.2g}.\n")


def machines(records: list[Record]) -> str:
    """Where all this was measured."""
    places = sorted({(one["processor"], one["cores"], one["device"], one["torch"])
                     for one in records})
    commits = sorted({one["commit"] for one in records})
    loads = [one["load_before"] for one in records]
    lines = [f"Machine: {name}, {cores} cores, device {device}, torch {torch}."
             for name, cores, device, torch in places]
    lines.append(f"Commits: {', '.join(commits)}. Load when a run began: "
                 f"{min(loads):.1f} to {max(loads):.1f}.")
    return "\n".join(lines) + "\n"


def failures(out: pathlib.Path) -> str:
    """What could not run, with the reason's last line."""
    rows = []
    for file in store.failures(out):
        lines = file.read_text(encoding="utf-8").strip().splitlines()
        rows.append((lines[0], lines[-1].replace("|", "/")[:160]))
    return table(("not run", "reason"), rows) if rows else ""


def section(records: list[Record], problem: Problem) -> str:
    """All tables of one problem."""
    found = outcome.outcomes(records, problem)
    paces = outcome.paces(records, problem)
    parts = [f"## {problem.model} on {problem.dataset}\n",
             f"{problem.parameters:,} parameters, {problem.ranks} ranks of batch {problem.batch}, "
             f"{problem.epochs} epochs of {problem.samples_per_epoch:,} samples, "
             f"{problem.optimizer}.\n", accuracy_table(found, problem)]
    for pace in paces:
        made = time_table(found, problem, pace)
        if made:
            parts += [f"### Communication / computation {pace.ratio:g}: "
                      f"{pace.rate_mbit:g} Mbit/s\n", _measured(pace, problem), made]
    parts += [whole_table(records, found, problem, paces), search_table(records, problem)]
    return "\n".join(part for part in parts if part)


def write(records: list[Record], out: pathlib.Path) -> None:
    """Write out/table.md, and figures where matplotlib is there."""
    if not records:
        return
    parts = ["# Training comparison\n", machines(records), NOTES, glance(records),
             *(section(records, problem) for problem in outcome.problems_of(records)),
             failures(out)]
    (out / "table.md").write_text("\n".join(parts), encoding="utf-8")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    from . import draw
    draw.write(records, out)
