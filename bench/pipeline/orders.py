# SPDX-License-Identifier: Apache-2.0
"""What each method runs: machines in the order of the pipeline, layers of every stage, the order.

Ours come from `msdu plan --stages`; torch's need nothing but counts of layers.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import tempfile
from typing import Any

from . import cases
from .cases import Case


@dataclasses.dataclass
class Way:
    """How a method runs a step. Plain values, for JSON.

    machines    by row of the schedule; those that are not in it idle
    rows        of each stage, its machine's row
    counts      layers of each stage
    schedule    "plan", "rows" (1F1B in the runtime), or one of torch's: "1f1b", "gpipe",
                "interleaved", "zbv"
    plan        for "plan": what `msdu plan --stages --json` printed, or a plan of the package
    predicted_s of a step, by the planner's simulation; None: it has none
    """

    name: str
    machines: list[int]
    rows: list[int]
    counts: list[int]
    schedule: str
    micro_batches: int
    plan: Any = None
    predicted_s: float | None = None
    bound_s: float | None = None

    def ends(self) -> list[tuple[int, int]]:
        """First layer and end of each stage."""
        begins = [sum(self.counts[:i]) for i in range(len(self.counts) + 1)]
        return list(zip(begins, begins[1:]))


def machines_file(names: list[str], speeds: list[float], rate_bits: float) -> dict[str, Any]:
    """In the format of --stages."""
    rate = f"{rate_bits / 1e6:.4f}mbit"
    return {"format": "msdu-machines-1",
            "machines": [{"name": name, "speed": speed, "rate": rate}
                         for name, speed in zip(names, speeds)],
            "links": {"rate": rate, "latency_us": cases.LATENCY_US}}


def profile_of(case: Case) -> dict[str, Any]:
    """The clock layers, for one micro-batch of a sample."""
    layers = [{"name": f"layer{i}", "forward_us": cases.FORWARD_S * 1e6,
               "backward_us": cases.BACKWARD_S * 1e6, "tensors": [],
               "output_bytes": 4 * case.floats} for i in range(case.layers)]
    return {"format": "msdu-profile-1", "name": "clock-layers", "layers": layers}


def ask(msdu: pathlib.Path, machines: dict[str, Any], profile: dict[str, Any], micro_batches: int,
        *options: str) -> dict[str, Any]:
    """`msdu plan --stages --json`. RuntimeError with what it complains of."""
    with tempfile.TemporaryDirectory(prefix="msdu-pipeline-") as folder:
        work = pathlib.Path(folder)
        (work / "machines.json").write_text(json.dumps(machines), encoding="utf-8")
        (work / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
        done = subprocess.run(
            [str(msdu), "plan", "--stages", str(work / "machines.json"), "--profile",
             str(work / "profile.json"), "--micro-batches", str(micro_batches), "--json", *options],
            capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"msdu plan: {done.stderr.strip()}")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def planned(name: str, plan: dict[str, Any]) -> Way:
    """A plan of ours, of machines named by their numbers."""
    return Way(name, [int(rank["machine"]) for rank in plan["ranks"]],
               [stage["rank"] for stage in plan["stages"]],
               [stage["end"] - stage["first"] for stage in plan["stages"]],
               "plan", plan["micro_batches"], plan, plan["step_us"] / 1e6, plan["bound_us"] / 1e6)


def of_torch(name: str, machines: list[int], counts: list[int], schedule: str, micro_batches: int,
             predicted_us: float = 0.0) -> Way | None:
    """One of torch's schedules with so many layers by machine; None if a stage would be empty, or
    torch takes only other numbers of micro-batches."""
    rows = list(range(len(machines)))
    if schedule in ("interleaved", "zbv"):
        counts = cases.halves(counts, schedule == "zbv")
        rows = rows + (rows[::-1] if schedule == "zbv" else rows)
    rounds = max(1, micro_batches // len(machines))
    is_refused = schedule == "interleaved" and micro_batches % rounds != 0
    if min(counts) == 0 or is_refused:
        return None
    return Way(name, machines, rows, counts, schedule, micro_batches, None,
               predicted_us / 1e6 or None)


def ways(msdu: pathlib.Path, case: Case, names: list[str]) -> list[Way]:
    """Of the methods, those that are possible. RuntimeError."""
    machines = machines_file([str(i) for i in range(len(case.speeds))], list(case.speeds),
                             case.data_bits)
    profile = profile_of(case)
    base = ask(msdu, machines, profile, case.micro_batches)
    ours = planned("ours", base)
    listed = list(range(len(case.speeds)))
    equal = cases.equal_counts(case.layers, len(listed))
    found: list[Way | None] = []
    for name in names:
        kind, _, schedule = name.partition("-")
        if name == "ours":
            found.append(ours)
        elif kind == "ours":
            plan = ask(msdu, machines, profile, case.micro_batches, "--split-backward",
                       "--two-stages")
            found.append(planned(name, plan))
        elif name == "naive":
            found.append(of_torch(name, listed, equal, "gpipe", 1))
        elif kind == "torch":
            found.append(of_torch(name, listed, equal, schedule, case.micro_batches,
                                  base.get(f"equal_{schedule}_us", 0.0)))
        else:
            schedule = "rows" if schedule == "runtime" else schedule
            found.append(of_torch(name, ours.machines, ours.counts, schedule, case.micro_batches,
                                  base.get(f"cuts_{schedule}_us", 0.0)))
    return [way for way in found if way is not None]
