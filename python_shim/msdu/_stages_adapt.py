# SPDX-License-Identifier: Apache-2.0
"""When to cut anew: where devices have become slower or faster, and it pays."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Optional

from . import _stages_abi
from ._stages_plan import Plan

_TRUST = 0.5  # of a new measurement in the mean
_WORTH = 1.05  # a plan that is faster by less is none


class Regret:
    """Rent or buy (Karlin et al. 1988): what a better plan would have saved is added up, and
    layers move once that is what moving costs. So the loss is at most twice that of who knew how
    long it lasts. Where no plan is better any more, nothing is regretted.

    Args:
        question: that the first plan answers.
        plan: in use.
        rebuild_s: seconds that a move takes beside its bytes.

    Attributes:
        regret_s: so far.
    """

    def __init__(self, question: _stages_abi.Question, plan: Plan, rebuild_s: float) -> None:
        self._question = question
        self._factors: dict[int, float] = {}
        self.plan = plan
        self.rebuild_s = rebuild_s
        self.regret_s = 0.0

    def look(self, stages_s: Sequence[float], steps: int) -> Optional[Plan]:
        """The plan to move to now, if it pays.

        Args:
            stages_s: computing of each stage in a step, measured.
            steps: since the last look.
        """
        for device in self.plan.devices:
            own = self.plan.of(device)
            planned = sum(self._planned_s(device, number) for number in own)
            if planned > 0:
                found = sum(stages_s[number] for number in own) / planned
                before = self._factors.get(device, found)
                self._factors[device] = before + _TRUST * (found - before)
        question = self._corrected()
        better = _stages_abi.plan(question)
        saved_s = (_stages_abi.time_ns(question, self.plan) - better.step_ns) / 1e9
        if saved_s * 1e9 <= (_WORTH - 1) * better.step_ns:
            self.regret_s = 0.0
            return None
        self.regret_s += steps * saved_s
        return better if self.regret_s >= self.cost_s(better) else None

    def moved(self, plan: Plan, rebuild_s: float) -> None:
        """The plan in use is this one now; moving took so long, beside the bytes."""
        self.plan, self.rebuild_s, self.regret_s = plan, rebuild_s, 0.0

    def cost_s(self, plan: Plan) -> float:
        """Of moving to a plan, in seconds: layers travel one after another."""
        now, then = self.plan.owners(), plan.owners()
        links = self._question.link_rate
        bytes_of = self._question.state_bytes
        travel = (bytes_of[n] / links[now[n]][then[n]] for n in now if now[n] != then[n])
        return self.rebuild_s + sum(travel)

    def _planned_s(self, device: int, number: int) -> float:
        asked, stage = self._question, self.plan.stages[number]
        layers = slice(stage.first, stage.end)
        once = sum(asked.forward_ns[device][layers]) + sum(asked.backward_ns[device][layers])
        return self.plan.micro_batches * once / 1e9

    def _corrected(self) -> _stages_abi.Question:
        """Times as measured; devices that nothing is measured of are taken to be as far off as
        the others are."""
        usual = statistics.median(self._factors.values()) if self._factors else 1.0

        def rows(of: list[list[float]]) -> list[list[float]]:
            factors = [self._factors.get(device, usual) for device in range(len(of))]
            return [[factor * ns for ns in row] for factor, row in zip(factors, of)]

        forward, backward = rows(self._question.forward_ns), rows(self._question.backward_ns)
        return dataclasses.replace(self._question, forward_ns=forward, backward_ns=backward)
