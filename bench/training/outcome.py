# SPDX-License-Identifier: Apache-2.0
"""What records say together: means over seeds, times, who reached what. Pure."""
from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable

from .record import Record

# Share of all steps in which a method trains as plain DDP; its step times are of the rest.
PLAIN_SHARE = {"postlocal": 0.1, "hierarchical": 0.1, "powersgd": 0.05}


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is trained: results are compared within one of these only."""

    model: str
    dataset: str
    ranks: int
    batch: int
    epochs: int
    samples_per_epoch: int
    parameters: int
    optimizer: str
    metric: str


def problem_of(one: Record) -> Problem:
    """The problem that a record belongs to."""
    return Problem(**{field.name: one[field.name] for field in dataclasses.fields(Problem)})


def problems_of(records: Iterable[Record]) -> list[Problem]:
    """All problems that full runs exist for, in order of first appearance, then those of which
    there is a search only. A search over fewer epochs belongs to the full run's problem."""
    full: dict[Problem, None] = {}
    searched: dict[Problem, None] = {}
    for one in records:
        if one["eval_samples"]:
            (searched if one["purpose"] == "search" else full)[problem_of(one)] = None
    alone = [one for one in searched
             if all(dataclasses.replace(one, epochs=other.epochs) != other for other in full)]
    return [*full, *alone]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One method with its settings on one problem, over seeds."""

    method: str
    settings: str
    lr: float
    by_seed: dict[int, float]  # metric at the end
    test_loss: float  # mean over seeds
    curve: tuple[tuple[float, float], ...]  # samples, metric (mean over seeds)
    bytes_per_rank: float
    fewer: float  # bytes of a plain float32 allreduce every step, by those sent
    steps: int
    metric: str  # accuracy or loss
    rate_mbit: float  # of the links; 0 where they are not shaped
    wall_s: float  # mean over seeds, evaluations left out

    @property
    def label(self) -> str:
        """Method and settings."""
        return f"{self.method} {self.settings}".strip()

    @property
    def finals(self) -> list[float]:
        """The metric at the end, of all seeds."""
        return list(self.by_seed.values())

    def beyond(self, other: Outcome) -> float:
        """Mean difference to another method over the seeds that both have; NaN without one.

        The same seed means the same first parameters and the same samples, so this scatters less
        than the difference of means.
        """
        shared = self.by_seed.keys() & other.by_seed.keys()
        differences = [self.by_seed[seed] - other.by_seed[seed] for seed in shared]
        return statistics.fmean(differences) if differences else float("nan")

    @property
    def mean(self) -> float:
        """Mean of the metric at the end over seeds."""
        return statistics.fmean(self.finals)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; NaN for a single one."""
        return statistics.stdev(self.finals) if len(self.finals) > 1 else float("nan")


def plain_bits(ranks: int, parameters: int) -> float:
    """Bits each rank sends in a ring allreduce of float32 gradients."""
    return 8 * 2 * (ranks - 1) / ranks * 4 * parameters


def plain_bytes(one: Record) -> float:
    """Bytes each rank sends when it does so in every step."""
    return plain_bits(one["ranks"], one["parameters"]) / 8 * float(one["steps"])


def _metric(one: Record) -> list[float]:
    return list(one[f"eval_{one['metric']}"])


def _outcome(group: list[Record]) -> Outcome:
    first = group[0]
    curves = [_metric(one) for one in group]
    mean = [statistics.fmean(values) for values in zip(*curves)]
    sent = statistics.fmean(one["bytes_per_rank"] for one in group)
    return Outcome(first["method"], first["settings"], first["lr"],
                   {one["seed"]: one["final"] for one in group},
                   statistics.fmean(one["eval_loss"][-1] for one in group),
                   tuple(zip(first["eval_samples"], mean)), sent,
                   plain_bytes(first) / sent, first["steps"], first["metric"],
                   first["rate_mbit"], statistics.fmean(one["wall_s"] for one in group))


def _grouped(records: Iterable[Record]) -> list[list[Record]]:
    groups: dict[tuple[object, ...], list[Record]] = {}
    for one in records:
        groups.setdefault((one["method"], one["settings"], one["lr"], one["rate_mbit"]),
                          []).append(one)
    return list(groups.values())


def outcomes(records: Iterable[Record], problem: Problem, part: str = "accuracy"
             ) -> list[Outcome]:
    """All methods of a problem in one part of the plan, most bytes first."""
    chosen = (one for one in records if one["purpose"] == part and problem_of(one) == problem)
    return sorted(map(_outcome, _grouped(chosen)), key=lambda one: one.fewer)


def reference(found: list[Outcome]) -> Outcome | None:
    """DDP's outcome, the one with most seeds."""
    plain = [one for one in found if one.method == "ddp"]
    return max(plain, key=lambda one: len(one.finals)) if plain else None


def target(ddp: Outcome, metric: str) -> float:
    """What counts as DDP's result: its mean, less (or more) its spread over seeds."""
    spread = ddp.spread if len(ddp.finals) > 1 else 0.0
    return ddp.mean + spread if metric == "loss" else ddp.mean - spread


def reached_at(points: Iterable[tuple[float, float]], goal: float, metric: str) -> float | None:
    """Where a curve of (x, metric) first reaches the goal, between points linearly; or None."""
    sign = -1.0 if metric == "loss" else 1.0
    before: tuple[float, float] | None = None
    for x, value in points:
        if sign * value >= sign * goal:
            if before is None or value == before[1]:
                return x
            return before[0] + (x - before[0]) * (goal - before[1]) / (value - before[1])
        before = (x, value)
    return None


@dataclasses.dataclass(frozen=True)
class Pace:
    """Step times of the methods on links of one rate, seconds."""

    ratio: float
    rate_mbit: float
    step_s: dict[str, float]  # by method

    def whole(self, method: str, steps: int) -> float | None:
        """Seconds of a full run as the product of steps and step time."""
        own, plain = self.step_s.get(method), self.step_s.get("ddp")
        share = PLAIN_SHARE.get(method, 0.0)
        if own is None or (share and plain is None):
            return None
        return steps * ((1 - share) * own + (share * plain if plain and share else 0.0))

    def waited(self, method: str) -> float | None:
        """Share of a step that is not computing: 1 - time of a step without any exchange."""
        own, computing = self.step_s.get(method), self.step_s.get("none")
        return None if own is None or computing is None else 1 - computing / own


def paces(records: Iterable[Record], problem: Problem) -> list[Pace]:
    """Step times of a problem, slowest links last."""
    by_rate: dict[tuple[float, float], dict[str, float]] = {}
    for one in records:
        if one["purpose"] == "step" and (one["model"], one["dataset"], one["ranks"]) == (
                problem.model, problem.dataset, problem.ranks):
            by_rate.setdefault((one["ratio"], one["rate_mbit"]), {})[one["method"]] = (
                one["step_median_s"])
    return [Pace(ratio, rate, times) for (ratio, rate), times in sorted(by_rate.items())]
