# SPDX-License-Identifier: Apache-2.0
"""One rank of msdu.pipeline() over clock layers whose times change while it trains.

A device becomes slow: the pipeline that moves layers, the plan that knew, and the plan that stays.
Or every layer takes another time in every pass, and nothing should move.
"""
from __future__ import annotations

import hashlib
import random
import time
from typing import Any

import msdu
import torch
import torch.distributed as dist
from msdu import _stages_abi
from torch import Tensor

from . import cases, clock, clock_rank
from .cases import Case

NOISE_LEAST = 0.1  # of a layer's time
PROBE_SLACK_S = 10e-3  # a pass of a few ms that overslept is made up for by the next, as in a step


class Device(clock.Clock):
    """With noise on every layer's time: a standard deviation, relative. No action of an engine
    opens the clock while layers are probed, so each of them does."""

    def __init__(self, speed: float, noise: float, seed: int) -> None:
        super().__init__(speed)
        self._is_probing = False
        self._noise, self._draw = noise, random.Random(seed)

    def probe(self, is_probing: bool) -> None:
        """Layers are timed one by one from now on, or not any more."""
        self._is_probing = is_probing
        self.slack_s = PROBE_SLACK_S if is_probing else clock.SLACK_S

    def spend(self, seconds: float) -> None:
        """Compute for about so long at speed 1."""
        if self._is_probing:
            self.open()
        factor = self._draw.gauss(1.0, self._noise) if self._noise else 1.0
        super().spend(seconds * max(NOISE_LEAST, factor))


class Trainer:
    """Pipelines that share this rank's device, and a batch."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.case = Case(**task["case"])
        rank = dist.get_rank()
        self._scale = float(task["scale"])
        self._every = int(task["adapt"])
        self.device = Device(self.case.speeds[rank], task["noise"], rank)
        clock.open_in_stages(self.device, clock.Journal())
        torch.manual_seed(1)
        self._x, self._y = (torch.randn(self.case.micro_batches, self.case.floats)
                            for _ in range(2))

    def plan(self, speeds: tuple[float, ...]) -> Any:
        """Of one who knows speeds and links."""
        case, count = self.case, len(speeds)

        def rows(seconds: float) -> list[list[float]]:
            return [[1e9 * self._scale * seconds / speed] * case.layers for speed in speeds]

        return _stages_abi.plan(_stages_abi.Question(
            micro_batches=case.micro_batches,
            forward_ns=rows(cases.FORWARD_S), backward_ns=rows(cases.BACKWARD_S),
            output_bytes=[4.0 * case.floats] * case.layers,
            kept_bytes=[4.0 * case.floats] * case.layers, state_bytes=[8.0] * case.layers,
            memory_bytes=[0.0] * count,
            link_rate=[[case.data_bits / 8] * count for _ in speeds],
            latency_ns=[[1e3 * cases.LATENCY_US] * count for _ in speeds],
            names=[str(number) for number in range(case.layers)]))

    def pipeline(self, plan: Any = None) -> msdu.Pipeline:
        """Without a plan it measures, and moves layers."""
        def maker(number: int) -> Any:
            return lambda: clock.ClockLayer(number, self.device, self._scale * cases.FORWARD_S,
                                            self._scale * cases.BACKWARD_S)

        self.device.probe(True)
        made = msdu.pipeline(
            [maker(number) for number in range(self.case.layers)],
            torch.nn.functional.mse_loss, lambda values: torch.optim.SGD(values, lr=1e-3),
            (self._x[:1], self._y[:1]), self.case.micro_batches, plan=plan, adapt=self._every)
        self.device.probe(False)
        return made

    def step(self, pipe: msdu.Pipeline) -> tuple[float, float]:
        """Seconds from the first rank's start to the last one's end, equal on all; the loss."""
        dist.barrier()
        begin = time.monotonic()
        loss = pipe.step(self._x, self._y)
        return clock_rank.since(begin)[1], loss


def _share(pipe: msdu.Pipeline) -> dict[str, Any]:
    """Its state, on all ranks."""
    held = [pipe.state_dict()]
    dist.broadcast_object_list(held)
    return held[0]


def _digest(values: dict[str, Tensor]) -> str:
    text = " ".join(f"{name} {float(value).hex()}" for name, value in sorted(values.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(name: str, pipe: msdu.Pipeline) -> dict[str, Any]:
    stages = pipe.plan.stages
    return {"method": name, "counts": [stage.end - stage.first for stage in stages],
            "machines": [stage.device for stage in stages],
            "predicted_s": pipe.plan.step_ns / 1e9, "moves": pipe.moves,
            "digest": _digest(_share(pipe)["model"])}


def _slowed(task: dict[str, Any], trainer: Trainer) -> list[dict[str, Any]]:
    """`change` steps, `settle` steps with other speeds, and `rounds` steps beside the two plans,
    which go on from the same state."""
    pipe = trainer.pipeline()
    before: dict[str, Any] = {}
    course, moved = [], []
    for number in range(task["change"] + task["settle"]):
        if number == task["change"]:
            before = _shown("before", pipe)
            trainer.device.speed = task["after"][dist.get_rank()]
        moves = pipe.moves
        course.append(trainer.step(pipe)[0])
        if pipe.moves > moves and before:
            moved.append(number + 1 - task["change"])
    every = {"adapt": pipe,
             "knew": trainer.pipeline(trainer.plan(tuple(task["after"]))),
             "static": trainer.pipeline(trainer.plan(trainer.case.speeds))}
    state = _share(pipe)
    for name in ("knew", "static"):
        every[name].load_state_dict(state)
        trainer.step(every[name])  # does not count
        every[name].load_state_dict(state)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
    for _ in range(task["rounds"]):
        for name, one in every.items():
            taken[name].append(trainer.step(one))
    found = [{**_shown(name, one), "seconds": [seconds for seconds, _ in taken[name]],
              "losses": [loss for _, loss in taken[name]]} for name, one in every.items()]
    found[0].update(change=task["change"], moved=moved, course=[round(s, 4) for s in course],
                    counts_before=before["counts"], machines_before=before["machines"],
                    moves_before=before["moves"])
    for one in every.values():
        one.finish()
    return found


def _noisy(task: dict[str, Any], trainer: Trainer) -> list[dict[str, Any]]:
    """As many steps as fit."""
    pipe = trainer.pipeline()
    seconds: list[float] = []
    while len(seconds) < task["steps"] and sum(seconds) < task["limit_s"]:
        seconds.append(trainer.step(pipe)[0])
    found = {**_shown("noise", pipe), "seconds": [round(s, 4) for s in seconds],
             "noise": task["noise"]}
    pipe.finish()
    return [found]


def main(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Results by method, on rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = (_noisy if task["noise"] else _slowed)(task, Trainer(task))
    dist.barrier()
    dist.destroy_process_group()
    return found
