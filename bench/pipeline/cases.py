# SPDX-License-Identifier: Apache-2.0
"""Which machines, methods and targets make up the comparison. Pure: nothing is measured here.

A model of *clock layers*: computing is a sleep that ends at absolute times, so four ranks need no
cores, and what is measured is order, links and engine. All of its layers are equal.
"""
from __future__ import annotations

import dataclasses
from typing import Any

Record = dict[str, Any]

FORWARD_S, BACKWARD_S = 2.5e-3, 5e-3  # a layer, one sample, speed 1
MTU = 9000
HEADERS, ETHERNET = 52, 14  # bytes: IPv4, TCP with timestamps; Ethernet
LATENCY_US = 100.0  # of a message between two hosts of the lab


@dataclasses.dataclass(frozen=True)
class Case:
    """Machines in the order in which the user lists them.

    rate_mbit  of every link, as the lab shapes it
    floats     of an activation between two layers, for one sample
    """

    says: str
    speeds: tuple[float, ...]
    rate_mbit: float = 100.0
    layers: int = 24
    micro_batches: int = 16
    floats: int = 31250  # 0.125 MB

    @property
    def data_bits(self) -> float:
        """Of the rate, what headers leave."""
        return self.rate_mbit * 1e6 * (MTU - HEADERS) / (MTU + ETHERNET)


CASES = {
    "1124": Case("1 : 1 : 2 : 4, 100 Mbit/s", (1, 1, 2, 4)),
    "1414": Case("1 : 4 : 1 : 4, 100 Mbit/s", (1, 4, 1, 4)),
    "straggler": Case("1 : 1 : 1 : 0.25, 100 Mbit/s", (1, 1, 1, 0.25)),
    "equal": Case("equal, 1 Gbit/s", (1, 1, 1, 1), 1000.0),
}
SMOKE = Case("1 : 2, 100 Mbit/s", (1, 2), layers=6, micro_batches=4, floats=2500)
# While it trains: a device becomes as slow as the straggler, or all layers' times are noisy, in
# small, so that many steps fit.
ADAPT = dataclasses.replace(CASES["straggler"], says="1 : 1 : 1 : 1 that becomes 1 : 1 : 1 : 0.25, "
                            "100 Mbit/s", speeds=(1, 1, 1, 1))
NOISE_SCALE = 0.1
NOISE = dataclasses.replace(ADAPT, says="equal, 100 Mbit/s",
                            floats=int(NOISE_SCALE * ADAPT.floats))
SLOW = ("1124", "1414", "straggler")  # of the targets over torch

# How a step is run: torch's classes; its runtime in 1F1B's order; a plan of ours.
METHODS = {
    "ours": "msdu plan: whole backward, one stage a machine",
    "ours-split-v": "msdu plan --split-backward --two-stages",
    "torch-1f1b": "Schedule1F1B, equal layers",
    "torch-gpipe": "ScheduleGPipe, equal layers",
    "torch-interleaved": "ScheduleInterleaved1F1B, equal layers, two stages a machine",
    "torch-zbv": "ScheduleZBVZeroBubble, equal layers, two stages a machine",
    "cuts-1f1b": "Schedule1F1B with our cuts and placement",
    "cuts-gpipe": "ScheduleGPipe with our cuts and placement",
    "cuts-runtime": "1F1B's order with our cuts in torch's runtime, torch's receives",
    "cuts-interleaved": "ScheduleInterleaved1F1B, our layers of each machine in two stages",
    "cuts-zbv": "ScheduleZBVZeroBubble, our layers of each machine in two stages",
    "naive": "one stage at a time: the whole batch as one micro-batch",
}
OURS = ("ours", "ours-split-v")
EQUAL = tuple(name for name in METHODS if name.startswith("torch-"))
CUTS = tuple(name for name in METHODS if name.startswith("cuts-"))


def methods_of(name: str) -> list[str]:
    """Of a case. Where machines are equal, our cuts are torch's."""
    return [one for one in METHODS if name != "equal" or one not in CUTS]


def equal_counts(layers: int, stages: int) -> list[int]:
    """Layers of each stage, as equal as they can be."""
    return [layers // stages + (i < layers % stages) for i in range(stages)]


def halves(counts: list[int], is_v: bool) -> list[int]:
    """Layers of two stages a machine: the first and the last of a V, else s and s + S."""
    first = [(count + 1) // 2 for count in counts]
    second = [count // 2 for count in counts]
    return first + (second[::-1] if is_v else second)


def order_1f1b(stage: int, stages: int, micro_batches: int) -> list[str]:
    """Schedule1F1B's actions of a stage, as torch writes them."""
    ahead = min(micro_batches, stages - stage)
    actions = [f"{stage}F{i}" for i in range(ahead)]
    for i in range(micro_batches):
        actions.append(f"{stage}B{i}")
        if ahead + i < micro_batches:
            actions.append(f"{stage}F{ahead + i}")
    return actions


def about_s(case: Case, name: str) -> float:
    """A rough step, to say how long a run takes."""
    whole = case.layers * case.micro_batches * (FORWARD_S + BACKWARD_S)
    message = 4 * case.floats * 8 / case.data_bits
    count = len(case.speeds)
    fill = 1 + 2 / case.micro_batches * count
    if name == "naive":
        slow = sum(1 / speed for speed in case.speeds) / count
        return whole * slow + 2 * (count - 1) * message * case.micro_batches
    if name in EQUAL:
        return whole / count / min(case.speeds) * 1.2 + 4 * case.micro_batches * message
    share = whole / sum(case.speeds) * fill
    return share if name in OURS else 1.6 * share
