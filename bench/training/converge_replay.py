# SPDX-License-Identifier: Apache-2.0
"""The default's decisions of another run, repeated: intervals and wire formats by step."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .method import Job
from .methods import Ours
from .record import Record

WIRES = {32: "float32", 16: "bfloat16", 8: "int8", 4: "int4", 2: "int2", 1: "sparse"}  # by bits


@dataclasses.dataclass(frozen=True)
class Part:
    """From this share of all steps on."""

    share: float
    interval: int
    wire: str


def course_of(records: Sequence[Record], model: str, dataset: str, ratio: float) -> str:
    """What the default did over links of this ratio, as text: "0:1:float32 0.1:2:int4".

    Of a whole run of the comparison, on this data set if there is one, else of the same model.
    Raises ValueError where there is none.
    """
    runs = [one for one in records if (one["purpose"], one["method"], one["settings"], one["model"],
                                       one["ratio"]) == ("whole", "ours", "", model, ratio)]
    runs.sort(key=lambda one: (one["dataset"] != dataset, one["seed"], one["started"]))
    if not runs:
        raise ValueError(f"replay-{ratio:g}: no whole run of the default with model {model}")
    changes = zip(runs[0]["msdu_change_step"], runs[0]["msdu_change_interval"],
                  runs[0]["msdu_change_bits"])
    return " ".join(f"{(step - 1) / runs[0]['steps']:.4f}:{interval}:{WIRES[round(bits)]}"
                    for step, interval, bits in changes)


def parts_of(course: str) -> list[Part]:
    """The text, read."""
    cells = [one.split(":") for one in course.split()]
    return [Part(float(share), int(interval), wire) for share, interval, wire in cells]


class Replay(Ours):
    """Setting `course`. Where it changes, the attachment ends by an exact average, and another
    begins; what error feedback held back is lost then. The default itself changes without."""

    def __init__(self, job: Job) -> None:
        self.parts = parts_of(job.settings.pop("course"))
        self.own = dict(job.settings)
        self.part = self.done = self.sent_before = 0
        job.settings = self._settings()
        super().__init__(job)

    def _settings(self) -> dict[str, str]:
        part = self.parts[self.part]
        return {"interval": "fixed", "interval_steps": str(part.interval), "wire": part.wire,
                "warmup_steps": "0", **self.own}

    def zero_grad(self) -> None:
        part = self.part
        while part + 1 < len(self.parts) and (
                self.done >= self.parts[part + 1].share * self.job.total_steps):
            part += 1
        if part != self.part:
            self.attachment.finish()
            self._change(part)
        super().zero_grad()

    def _change(self, part: int) -> None:
        self.sent_before += self.attachment.summary().bytes_sent
        self.attachment.close()
        self.part = part
        self.attach(self._settings())

    def step(self) -> None:
        super().step()
        self.done += 1

    def bytes_sent(self) -> int:
        return self.sent_before + super().bytes_sent()

    def saved(self) -> Any:
        return {"part": self.part, "done": self.done, "library": super().saved()}

    def load(self, state: Any) -> None:
        if state["part"] != self.part:
            self._change(state["part"])
        self.done = state["done"]
        super().load(state["library"])
