# SPDX-License-Identifier: Apache-2.0
"""Plans as Python values: the library's, the command's, and their orders with messages."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from ctypes import POINTER
from pathlib import Path

import pytest

from msdu import _abi, _stages_abi, _stages_plan

LAYERS = 12
LETTERS = ("F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B")  # msdu_stages_kind


def question(speeds: list[float], may: int) -> _stages_abi.Question:
    count = len(speeds)
    return _stages_abi.Question(
        micro_batches=8,
        forward_ns=[[1e6 / speed] * LAYERS for speed in speeds],
        backward_ns=[[2e6 / speed] * LAYERS for speed in speeds],
        output_bytes=[2e4] * LAYERS,
        kept_bytes=[1e5] * LAYERS,
        state_bytes=[1e6] * LAYERS,
        memory_bytes=[0.0] * count,
        link_rate=[[1.25e8] * count] * count,
        latency_ns=[[1e5] * count] * count,
        names=[f"h{layer}" for layer in range(LAYERS)],
        may=may,
    )


def lowered(asked: _stages_abi.Question) -> list[list[str]]:
    """The library's own order with messages, by rank."""
    loaded, found = _stages_abi.library(), POINTER(_stages_abi.PlanStruct)()
    given = _stages_abi.struct(asked)
    _abi.library().check(loaded.msdu_stages_plan(ctypes.byref(given), ctypes.byref(found)))
    plan = found.contents
    rows = [
        [
            f"{a.stage}{LETTERS[a.kind]}{a.micro_batch}"
            for a in plan.lowered[plan.lowered_begin[rank] : plan.lowered_begin[rank + 1]]
        ]
        for rank in range(plan.rank_count)
    ]
    loaded.msdu_stages_free(found)
    return rows


@pytest.mark.parametrize("may", [0, _stages_abi.SPLIT, _stages_abi.SPLIT | _stages_abi.TWO])
@pytest.mark.parametrize("speeds", [[1, 1, 2, 4], [1, 1, 1, 1]], ids=str)
def test_the_librarys_plans(speeds: list[float], may: int) -> None:
    asked = question(speeds, may)
    plan = _stages_abi.plan(asked)
    plan.check(LAYERS, 4)
    assert _stages_plan.read(plan.dumps()) == plan
    assert _stages_abi.time_ns(asked, plan) == pytest.approx(plan.step_ns)
    drawn = plan.schedule("title")
    ends = [a["end_us"] for rank in drawn["ranks"] for a in rank["actions"]]
    assert max(ends) == pytest.approx(drawn["step_us"])
    assert sum(map(len, plan.orders.values())) == len(ends)
    rows = dict(zip(plan.devices, plan.rows_with_messages()))
    assert [rows[device] for device in plan.orders] == lowered(asked)


def test_the_commands_plans(tmp_path: Path) -> None:
    library = os.environ.get("MSDU_LIBRARY", "")
    command = Path(library).resolve().parents[1] / "bin" / "msdu"
    if not command.exists():
        pytest.skip(f"no {command}")
    layers = [
        {
            "name": f"h{i}",
            "forward_us": 1000,
            "backward_us": 2000,
            "tensors": [],
            "output_bytes": 2e4,
        }
        for i in range(LAYERS)
    ]
    machines = [{"name": f"m{i}", "speed": speed} for i, speed in enumerate((1, 2))]
    profile, where = tmp_path / "profile.json", tmp_path / "machines.json"
    profile.write_text(json.dumps({"format": "msdu-profile-1", "name": "p", "layers": layers}))
    where.write_text(
        json.dumps({"format": "msdu-machines-1", "machines": machines, "links": {"rate": "1gbit"}})
    )
    words = [command, "plan", "--stages", where, "--profile", profile, "--micro-batches", "8"]
    files = [tmp_path / "order.csv", tmp_path / "messages.csv"]
    words += ["--json", "--csv", files[0], "--csv-messages", files[1]]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    plan = _stages_plan.read(json.loads(done.stdout))
    plan.check(LAYERS, 2)
    assert plan.step_ns >= plan.bound_ns > 0
    printed = json.loads(done.stdout)["ranks"]
    for drawn, rank in zip(plan.schedule()["ranks"], printed):
        for one, other in zip(drawn["actions"], rank["actions"]):
            assert one["end_us"] == pytest.approx(other["end_us"], abs=1e-3)
    for file, rows in zip(files, (plan.rows(), plan.rows_with_messages())):
        assert file.read_text().split() == [",".join(row) for row in rows]
