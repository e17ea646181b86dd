# SPDX-License-Identifier: Apache-2.0
"""The package's structs against the header; skipped where the header is not at hand."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from msdu import _abi, _stages_abi

HEADER = Path(__file__).resolve().parents[2] / "include" / "msdu" / "msdu.h"
pytestmark = pytest.mark.skipif(not HEADER.exists(), reason="include/msdu/msdu.h is not here")

TYPES = {
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "msdu_log_fn": _abi.LOG_FN,
    "pointer": ctypes.c_void_p,
}


def header() -> str:
    text = HEADER.with_name("config.h").read_text() + HEADER.read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def layout(name: str) -> dict[str, tuple[int, int]]:
    """Offset and size of each field of a struct of the header."""
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", header(), re.S)
    assert body
    fields = []
    for line in body.group(1).split(";"):
        found = re.fullmatch(r"\s*(const )?(\w+)\s+(\**)(\w+)(?:\[(\d+)\])?\s*", line)
        if not found:
            assert not line.strip(), line
            continue
        _, kind, stars, field, count = found.groups()
        c_type = TYPES["pointer" if stars else kind] if not count else ctypes.c_char * int(count)
        fields.append((field, c_type))
    made = type(name, (ctypes.Structure,), {"_fields_": fields})
    sizes = {f: (getattr(made, f).offset, getattr(made, f).size) for f, _ in fields}
    return {**sizes, "": (0, ctypes.sizeof(made))}


@pytest.mark.parametrize(
    ("name", "mirror"),
    [
        ("msdu_tensor_desc", _abi.TensorDesc),
        ("msdu_summary", _abi.SummaryStruct),
        ("msdu_setting_info", _abi.SettingInfo),
        ("msdu_resolved", _abi.Resolved),
        ("msdu_work", _abi.Work),
    ],
)
def test_structs_lie_as_in_the_header(name: str, mirror: type[ctypes.Structure]) -> None:
    wanted = layout(name)
    assert wanted.pop("") == (0, ctypes.sizeof(mirror))
    mine = {f: (getattr(mirror, f).offset, getattr(mirror, f).size) for f, *_ in mirror._fields_}
    assert mine == wanted


def test_the_fields_of_the_config_that_are_used_lie_as_in_the_header() -> None:
    wanted = layout("msdu_config")
    for name in ("size", "config_file", "log", "log_user", "log_level", "settings"):
        mine = getattr(_abi.Config, name)
        assert (mine.offset, mine.size) == wanted[name], name


def test_every_function_of_the_header_is_bound() -> None:
    declared = set(re.findall(r"\b(msdu_\w+)\(", header())) - {"msdu_log_fn"}
    declared = {name for name in declared if re.search(rf"MSDU_API[^;]*\b{name}\(", header())}
    bound = set(_abi._STATUS_FUNCTIONS) | {"msdu_destroy", "msdu_version", "msdu_last_error"}
    assert declared == bound | {"msdu_status_name", "msdu_status_text"}


def test_values_are_the_headers() -> None:
    values = dict(re.findall(r"\b(MSDU_[A-Z_0-9]+) = (\d+)", header()))
    for name, value in (
        ("MSDU_GRADIENT", _abi.GRADIENT),
        ("MSDU_PARAMETER", _abi.PARAMETER),
        ("MSDU_FLOAT32", _abi.FLOAT32),
        ("MSDU_FLOAT64", _abi.FLOAT64),
        ("MSDU_FLOAT16", _abi.FLOAT16),
        ("MSDU_BFLOAT16", _abi.BFLOAT16),
        ("MSDU_ROLE_MODEL", _abi.ROLE_MODEL),
        ("MSDU_ROLE_STATE", _abi.ROLE_STATE),
        ("MSDU_ROLE_BUFFER", _abi.ROLE_BUFFER),
        ("MSDU_ROLE_FIXED", _abi.ROLE_FIXED),
    ):
        assert int(values[name]) == value, name
    statuses = dict(re.findall(r"X\((ERR_\w+), (-\d+),", header()))
    for code, name in _abi._NAMES.items():
        assert int(statuses[name[len("MSDU_") :]]) == code


def stages_layout(name: str) -> dict[str, tuple[int, int]]:
    """As layout(), of stages.h, where arrays of numbers are pointers."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.with_name("stages.h").read_text(), flags=re.S)
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, re.S)
    assert body
    types = {**TYPES, "msdu_stages_torch": ctypes.c_double * 4}
    fields = []
    for line in filter(str.strip, body.group(1).split(";")):
        found = re.fullmatch(r"\s*(?:const )?(\w+)\s+(\**)(?:const \*)?(\w+)\s*", line)
        assert found, line
        is_pointer = found[2] or "*" in line
        fields.append((found[3], types["pointer" if is_pointer else found[1]]))
    made = type(name, (ctypes.Structure,), {"_fields_": fields})
    sizes = {f: (getattr(made, f).offset, getattr(made, f).size) for f, _ in fields}
    return {**sizes, "": (0, ctypes.sizeof(made))}


@pytest.mark.parametrize(
    ("name", "mirror"),
    [
        ("msdu_stages_question", _stages_abi.QuestionStruct),
        ("msdu_stages_action", _stages_abi.ActionStruct),
        ("msdu_stages_stage", _stages_abi.StageStruct),
        ("msdu_stages", _stages_abi.PlanStruct),
    ],
)
def test_structs_of_pipelines_lie_as_in_the_header(
    name: str, mirror: type[ctypes.Structure]
) -> None:
    wanted = stages_layout(name)
    assert wanted.pop("") == (0, ctypes.sizeof(mirror))
    names = {"torch_ns": "torch"}
    mine = {
        names.get(f, f): (getattr(mirror, f).offset, getattr(mirror, f).size)
        for f, *_ in mirror._fields_
    }
    assert mine == wanted


def test_kinds_of_actions_are_the_headers() -> None:
    text = HEADER.with_name("stages.h").read_text()
    kinds = re.findall(r"MSDU_STAGES_\w+ = (\d+),\s+/\* ([FBIW])\b(?!_)", text)
    assert [letter for _, letter in sorted(kinds)] == list(_stages_abi.KINDS)
    values = dict(re.findall(r"(MSDU_STAGES_(?:SPLIT|TWO)) = (\d+)", text))
    assert int(values["MSDU_STAGES_SPLIT"]) == _stages_abi.SPLIT
    assert int(values["MSDU_STAGES_TWO"]) == _stages_abi.TWO
