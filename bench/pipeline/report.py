# SPDX-License-Identifier: Apache-2.0
"""Tables of the comparison, beside what was aimed at. Pure: records in, Markdown out."""
from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from . import cases
from .cases import Case

Record = dict[str, Any]
AIM_EACH, AIM_MEAN, AIM_CUTS, AIM_EQUAL, AIM_ERROR = 2.4, 2.8, 1.3, 0.97, 0.10
AIM_ALONE, AIM_DDP = 1.1, 3.0
AIM_KNEW = 1.1


def median(record: Record) -> float:
    """Seconds of a step in one run."""
    return statistics.median(record["seconds"])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def by_method(records: Sequence[Record], kind: str, case: str) -> dict[str, list[Record]]:
    """Of a case, over its runs."""
    found: dict[str, list[Record]] = {}
    for one in records:
        if one["kind"] == kind and one["case"] == case:
            found.setdefault(one["method"], []).append(one)
    return found


def step_s(runs: Sequence[Record]) -> float:
    """Median of all steps of all runs."""
    return statistics.median([value for one in runs for value in one["seconds"]])


def unequal(records: Sequence[Record]) -> list[str]:
    """Methods whose bits are not those of the others in a run; naive has other micro-batches."""
    found = []
    runs: dict[str, list[Record]] = {}
    for one in records:
        if one["kind"] != "replicas" and one["method"] != "naive":
            runs.setdefault(one["run"], []).append(one)
    for name, same in runs.items():
        known = {one["method"]: one for one in same}
        first = known.get("one process") or known.get("torch-1f1b") or same[0]
        for one in same:
            if (one["digest"], one.get("losses")) != (first["digest"], first.get("losses")):
                found.append(f"{name}: {one['method']} beside {first['method']}")
    return found


def _layers(record: Mapping[str, Any]) -> str:
    return " ".join(f"{machine}:{count}" for machine, count in
                    zip(record["machines"], record["counts"]))


def _clock_rows(found: Mapping[str, list[Record]]) -> list[list[str]]:
    ours = step_s(found["ours"]) if "ours" in found else math.nan
    rows = []
    for name in cases.METHODS:
        if name not in found:
            continue
        runs = found[name]
        steps = [value for one in runs for value in one["seconds"]]
        measured, predicted = step_s(runs), runs[0].get("predicted_s")
        error = "" if not predicted else f"{100 * (predicted / measured - 1):+.0f} %"
        rows.append([name, cases.METHODS[name], _layers(runs[0]), f"{measured:.3f}",
                     f"{min(steps):.3f} to {max(steps):.3f}", str(len(steps)),
                     "" if not predicted else f"{predicted:.3f}", error, f"{measured / ours:.2f}"])
    return rows


CLOCK_HEAD = ("method", "what", "machine:layers by stage", "step s", "from, to", "steps",
              "predicted s", "error", "by ours")


def _clock(records: Sequence[Record], known: Mapping[str, Case]) -> list[str]:
    parts = []
    for name, case in known.items():
        found = by_method(records, "clock", name)
        if found:
            bound = next((one["bound_s"] for one in found.get("ours", []) if one["bound_s"]), None)
            least = "" if bound is None else f" No plan of whole backward passes: {bound:.3f} s."
            parts.append(f"## Clock layers, {case.says}\n\n{case.layers} layers of "
                         f"{cases.FORWARD_S * 1e3:g} + {cases.BACKWARD_S * 1e3:g} ms at speed 1, "
                         f"{4 * case.floats / 1e6:g} MB between stages, {case.micro_batches} "
                         f"micro-batches.{least}\n\n{table(CLOCK_HEAD, _clock_rows(found))}")
    return parts


def _best(found: Mapping[str, list[Record]], names: Sequence[str]) -> tuple[float, str]:
    """Seconds and name of the fastest."""
    return min((step_s(found[name]), name) for name in names if name in found)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def targets(records: Sequence[Record]) -> str:
    """What was aimed at beside what came out."""
    rows: list[list[str]] = []
    gains, naive, errors = [], [], []
    for name in cases.CASES:
        found = by_method(records, "clock", name)
        if not all(one in found for one in ("ours", "torch-1f1b")):
            continue
        says, ours = cases.CASES[name].says, step_s(found["ours"])
        predicted = found["ours"][0]["predicted_s"]
        errors.append((abs(predicted / ours - 1), says))
        fastest, which = _best(found, cases.EQUAL)
        if name in cases.SLOW:
            gain = step_s(found["torch-1f1b"]) / ours
            gains.append(gain)
            naive += [step_s(found["naive"]) / ours] if "naive" in found else []
            rows.append([f"over 1F1B with equal layers, {says}", f">= {AIM_EACH}", f"{gain:.2f}",
                         _verdict(gain >= AIM_EACH)])
            rows.append([f"over the best torch with equal layers ({which}), {says}", "",
                         f"{fastest / ours:.2f}", ""])
            if not any(one in found for one in cases.CUTS):
                continue
            cuts, which = _best(found, cases.CUTS)
            aim = f">= {AIM_CUTS}" if name == "1124" else ""
            rows.append([f"over the best torch with our cuts ({which}), {says}", aim,
                         f"{cuts / ours:.2f}", _verdict(cuts / ours >= AIM_CUTS) if aim else ""])
        else:
            for one in cases.OURS:
                if one in found:
                    ratio = fastest / step_s(found[one])
                    is_judged = one == "ours-split-v"
                    rows.append([f"{one} over the best torch ({which}), {says}",
                                 f">= {AIM_EQUAL}" if is_judged else "", f"{ratio:.2f}",
                                 _verdict(ratio >= AIM_EQUAL) if is_judged else ""])
    if len(gains) == len(cases.SLOW):
        mean = statistics.geometric_mean(gains)
        rows.append(["over 1F1B with equal layers, geometric mean", f">= {AIM_MEAN}",
                     f"{mean:.2f}", _verdict(mean >= AIM_MEAN)])
    if naive:
        rows.append(["over one stage at a time, geometric mean", "",
                     f"{statistics.geometric_mean(naive):.2f}", ""])
    for error, says in errors:
        rows.append([f"ours predicted beside measured, {says}", f"<= {100 * AIM_ERROR:.0f} %",
                     f"{100 * error:.0f} %", _verdict(error <= AIM_ERROR)])
    rows += _replica_targets(records)
    rows += _adapt_targets(records)
    wrong = unequal(records)
    rows.append(["bits of losses, and of gradients or parameters, beside one process or all others",
                 "equal", "; ".join(wrong) or "equal", _verdict(not wrong)])
    return table(("target", "aim", "measured", ""), rows)


def _replica_targets(records: Sequence[Record]) -> list[list[str]]:
    found = by_method(records, "replicas", "replicas")
    if len(found) < 3:
        return []
    ours, alone = step_s(found["msdu"]), step_s(found["pipeline alone"])
    gain = step_s(found["pipeline + DDP"]) / ours
    return [["two pipelines joined by msdu, beside the pipeline alone", f"<= {AIM_ALONE}",
             f"{ours / alone:.2f}", _verdict(ours / alone <= AIM_ALONE)],
            ["two pipelines joined by msdu, over pipeline + DDP", f">= {AIM_DDP:g}", f"{gain:.2f}",
             _verdict(gain >= AIM_DDP)]]


def _adapt_targets(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    found = by_method(records, "adapt", "adapt")
    if len(found) == 3:
        ours = step_s(found["adapt"])
        ratio = ours / step_s(found["knew"])
        what = "a device slows down by 4"
        rows = [[f"{what}: step after moving, beside the plan that knew", f"<= {AIM_KNEW}",
                 f"{ratio:.2f}", _verdict(ratio <= AIM_KNEW)],
                [f"{what}: the plan that stays, over that step", "",
                 f"{step_s(found['static']) / ours:.2f}", ""],
                [f"{what}: steps until layers moved", "",
                 "; ".join(_moved(one) for one in found["adapt"]), ""]]
    for one in by_method(records, "adapt", "noise").get("noise", []):
        rows.append([f"{100 * one['noise']:.0f} % noise on every layer, {len(one['seconds'])} "
                     "steps: moves", "0", str(one["moves"]), _verdict(one["moves"] == 0)])
    return rows


def _moved(record: Record) -> str:
    return ", ".join(map(str, record["moved"])) or "never"


ADAPT_SAYS = {"adapt": "msdu.pipeline(), which measured, planned and moved layers",
              "knew": "the plan for the slow device, from the start",
              "static": "the plan for equal devices"}


def _adapt(records: Sequence[Record]) -> list[str]:
    found = by_method(records, "adapt", "adapt")
    if "adapt" not in found:
        return []
    one = found["adapt"][0]
    rows = [[name, ADAPT_SAYS[name], _layers(runs[0]), f"{step_s(runs):.3f}",
             f"{min(runs[0]['seconds']):.3f} to {max(runs[0]['seconds']):.3f}",
             f"{runs[0]['predicted_s']:.3f}"] for name, runs in found.items()]
    head = ("method", "what", "machine:layers by stage", "step s", "from, to", "predicted s")
    before = {"machines": one["machines_before"], "counts": one["counts_before"]}
    return [f"## A device slows down by 4 after {one['change']} steps\n\nClock layers; the three "
            "take steps in turn, from the same state, once layers have moved. Before: "
            f"{_layers(before)}. Layers moved {_moved(one)} steps after the change.\n\n"
            f"{table(head, rows)}"]


def _real(records: Sequence[Record]) -> list[str]:
    parts = []
    found = by_method(records, "text", "text")
    if found:
        rows = [[name, _layers(runs[0]), f"{step_s(runs):.3f}",
                 "" if not runs[0]["predicted_s"] else f"{runs[0]['predicted_s']:.3f}",
                 str(runs[0].get("moves", "")), f"{runs[0]['losses'][0]:.4f}",
                 f"{runs[0]['losses'][-1]:.9g}", runs[0]["digest"]]
                for name, runs in found.items()]
        head = ("method", "machine:layers by stage", "step s", "predicted s", "moves",
                "first loss", "last loss", "parameters")
        parts.append("## Real training under shares of a core, 100 Mbit/s\n\nA transformer over "
                     "bytes; machines 0 to 3 have 1, 0.5, 0.25 and 0.25 of a core; the one process "
                     "has a core. `ours` is msdu.pipeline(), which measured layers and links "
                     "itself. A step is the median of the last third.\n\n"
                     f"{table(head, rows)}")
    found = by_method(records, "replicas", "replicas")
    if found:
        least = min(runs[0]["steps"] for runs in found.values())
        rows = [[name, str(runs[0]["counts"]), f"{step_s(runs):.3f}", str(runs[0]["steps"]),
                 f"{runs[0]['losses'][least - 1]:.3f}", f"{runs[0]['losses'][-1]:.3f}",
                 ", ".join(map(str, runs[0].get("interval_steps", [])))]
                for name, runs in found.items()]
        head = ("method", "layers", "step s", "steps", f"loss at step {least}", "last loss",
                "h of rank 0's stages")
        parts.append("## Two pipelines of two machines, 100 Mbit/s\n\nA transformer over bytes of "
                     f"{next(iter(found.values()))[0]['parameters'] / 1e6:.1f} million parameters; "
                     "each pipeline has its own batches. A step is the mean over the last third of "
                     f"all steps, exchanges included.\n\n{table(head, rows)}")
    return parts


def text(records: Sequence[Record], known: Mapping[str, Case]) -> str:
    """The whole report."""
    if not records:
        return "No records.\n"
    one = records[-1]
    load = max(record["load_before"] for record in records)
    where = (f"{one['processor']}, {one['cores']} cores, torch {one['torch']}, commit "
             f"{one['commit']}, {one['date']}; load before each run, that of the one before "
             f"included, {load:.1f} at most.\n")
    judged = targets(records) if known is cases.CASES else ""
    parts = ["# Pipelines of unequal machines\n", where, judged, *_clock(records, known),
             *_adapt(records), *_real(records)]
    return "\n".join(parts)
