# SPDX-License-Identifier: Apache-2.0
"""The C interface of pipelines (stages.h) through ctypes; needs no torch."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_double, c_int32, c_size_t, c_uint32
from typing import Any

from . import _abi
from ._stages_plan import Action, Plan, Stage

KINDS = "FBIW"  # msdu_stages_kind, computing
SPLIT, TWO = 1, 2  # msdu_stages_may
_DOUBLES = POINTER(c_double)


class QuestionStruct(ctypes.Structure):
    """msdu_stages_question."""

    _fields_ = [
        ("size", c_size_t),
        ("layers", c_uint32),
        ("devices", c_uint32),
        ("micro_batches", c_uint32),
        ("may", c_uint32),
        ("batch", c_uint32),
        ("samples", c_uint32),
        ("ahead", c_uint32),
        ("forward_ns", _DOUBLES),
        ("backward_ns", _DOUBLES),
        ("weight_ns", _DOUBLES),
        ("fixed_forward_ns", _DOUBLES),
        ("fixed_backward_ns", _DOUBLES),
        ("output_bytes", _DOUBLES),
        ("kept_bytes", _DOUBLES),
        ("state_bytes", _DOUBLES),
        ("memory_bytes", _DOUBLES),
        ("card_rate", _DOUBLES),
        ("link_rate", _DOUBLES),
        ("latency_ns", _DOUBLES),
        ("layer_names", POINTER(c_char_p)),
        ("device_names", POINTER(c_char_p)),
    ]


class ActionStruct(ctypes.Structure):
    """msdu_stages_action."""

    _fields_ = [
        ("stage", c_uint32),
        ("micro_batch", c_uint32),
        ("kind", c_int32),
        ("reserved", c_uint32),
        ("begin_ns", c_double),
        ("end_ns", c_double),
    ]


class StageStruct(ctypes.Structure):
    """msdu_stages_stage."""

    _fields_ = [
        ("device", c_uint32),
        ("rank", c_uint32),
        ("first", c_uint32),
        ("end", c_uint32),
        ("holds", c_uint32),
        ("reserved", c_uint32),
        ("busy_ns", c_double),
        ("memory_bytes", c_double),
    ]


class PlanStruct(ctypes.Structure):
    """msdu_stages; of msdu_stages_torch, which ends it, nothing is read."""

    _fields_ = [
        ("size", c_size_t),
        ("stage_count", c_uint32),
        ("rank_count", c_uint32),
        ("micro_batches", c_uint32),
        ("reserved", c_uint32),
        ("stages", POINTER(StageStruct)),
        ("actions", POINTER(ActionStruct)),
        ("rank_begin", POINTER(c_uint32)),
        ("lowered", POINTER(ActionStruct)),
        ("lowered_begin", POINTER(c_uint32)),
        ("step_ns", c_double),
        ("bound_ns", c_double),
        ("beta_ns", c_double),
        ("torch_ns", c_double * 4),
    ]


@dataclasses.dataclass
class Question:
    """What is asked; times and bytes are of one micro-batch. As msdu_stages_question has it.

    Attributes:
        micro_batches: of a step.
        forward_ns, backward_ns: by device, by layer.
        output_bytes, kept_bytes, state_bytes: by layer.
        memory_bytes: by device; 0: no limit.
        link_rate: bytes a second from device to device; the diagonal is not read.
        latency_ns: likewise.
        names: of layers, for messages.
        may: SPLIT, TWO, both or 0.
    """

    micro_batches: int
    forward_ns: list[list[float]]
    backward_ns: list[list[float]]
    output_bytes: list[float]
    kept_bytes: list[float]
    state_bytes: list[float]
    memory_bytes: list[float]
    link_rate: list[list[float]]
    latency_ns: list[list[float]]
    names: list[str]
    may: int = 0


def _row(values: Sequence[float]) -> Any:
    return (c_double * len(values))(*values)


def _rows(values: Sequence[Sequence[float]]) -> Any:
    return _row([value for row in values for value in row])


def _texts(values: Sequence[str]) -> Any:
    return (c_char_p * len(values))(*(value.encode() for value in values))


def struct(question: Question) -> QuestionStruct:
    """For the library; arrays live as long as the struct."""
    devices = len(question.forward_ns)
    return QuestionStruct(
        size=ctypes.sizeof(QuestionStruct),
        layers=len(question.output_bytes),
        devices=devices,
        micro_batches=question.micro_batches,
        may=question.may,
        forward_ns=_rows(question.forward_ns),
        backward_ns=_rows(question.backward_ns),
        output_bytes=_row(question.output_bytes),
        kept_bytes=_row(question.kept_bytes),
        state_bytes=_row(question.state_bytes),
        memory_bytes=_row(question.memory_bytes),
        link_rate=_rows(question.link_rate),
        latency_ns=_rows(question.latency_ns),
        layer_names=_texts(question.names),
        device_names=_texts([f"rank {device}" for device in range(devices)]),
    )


def library() -> Any:
    """The functions of stages.h."""
    found = ctypes.CDLL(_abi.library().path)
    found.msdu_stages_plan.argtypes = [POINTER(QuestionStruct), POINTER(POINTER(PlanStruct))]
    found.msdu_stages_free.argtypes = [POINTER(PlanStruct)]
    found.msdu_stages_free.restype = None
    found.msdu_stages_time.argtypes = [
        POINTER(QuestionStruct),
        POINTER(PlanStruct),
        POINTER(c_double),
    ]
    return found


def plan(question: Question) -> Plan:
    """The best cut, devices and order: msdu_stages_plan().

    Raises:
        msdu.Error: MSDU_ERR_NOT_FOUND, too little memory or no link; what else stages.h says.
    """
    found, loaded = POINTER(PlanStruct)(), library()
    asked = struct(question)
    _abi.library().check(loaded.msdu_stages_plan(ctypes.byref(asked), ctypes.byref(found)))
    try:
        return _read(found.contents)
    finally:
        loaded.msdu_stages_free(found)


def time_ns(question: Question, present: Plan) -> float:
    """A step of a present plan under the times of a question: msdu_stages_time()."""
    stages, ranks = present.stages, {d: r for r, d in enumerate(present.orders)}
    rows = list(present.orders.values())
    actions = [(s, m, KINDS.index(k)) for row in rows for s, k, m in row]
    begins = [sum(map(len, rows[:rank])) for rank in range(len(rows) + 1)]
    given = PlanStruct(
        size=ctypes.sizeof(PlanStruct),
        stage_count=len(stages),
        rank_count=len(rows),
        micro_batches=present.micro_batches,
        stages=(StageStruct * len(stages))(
            *(StageStruct(s.device, ranks[s.device], s.first, s.end) for s in stages)
        ),
        actions=(ActionStruct * len(actions))(*(ActionStruct(*action) for action in actions)),
        rank_begin=(c_uint32 * len(begins))(*begins),
    )
    step_ns = c_double()
    asked = struct(question)
    code = library().msdu_stages_time(
        ctypes.byref(asked), ctypes.byref(given), ctypes.byref(step_ns)
    )
    _abi.library().check(code)
    return step_ns.value


def _read(found: PlanStruct) -> Plan:
    stages = tuple(
        Stage(s.device, s.first, s.end, s.holds, s.busy_ns, s.memory_bytes)
        for s in found.stages[: found.stage_count]
    )
    devices = {s.rank: s.device for s in found.stages[: found.stage_count]}
    orders: Mapping[int, tuple[Action, ...]] = {
        devices[rank]: tuple(
            (a.stage, KINDS[a.kind], a.micro_batch)
            for a in found.actions[found.rank_begin[rank] : found.rank_begin[rank + 1]]
        )
        for rank in range(found.rank_count)
    }
    spans = {
        devices[rank]: tuple(
            (a.begin_ns, a.end_ns)
            for a in found.actions[found.rank_begin[rank] : found.rank_begin[rank + 1]]
        )
        for rank in range(found.rank_count)
    }
    return Plan(found.micro_batches, stages, orders, found.step_ns, found.bound_ns, spans)
