# SPDX-License-Identifier: Apache-2.0
"""What records of trainings to convergence say together: gaps, step factors, times. Pure."""
from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from . import outcome
from .record import Record

Points = list[tuple[float, float]]  # samples, result
MEASURES = ("loss", "accuracy", "train_loss")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its standard error, NaN of one seed; `bound` is "<" or ">" where it is
    only that, "?" where seeds differ in it."""

    mean: float
    error: float = math.nan
    bound: str = ""


def estimate(values: Sequence[float]) -> Estimate:
    """Of differences or factors by seed."""
    if not values:
        return Estimate(math.nan)
    error = math.nan
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(statistics.fmean(values), error)


@dataclasses.dataclass(frozen=True)
class Line:
    """One method at one learning rate on one workload, by seed."""

    method: str
    lr: float
    by_seed: dict[int, Record]

    def samples(self) -> list[float]:
        """Of the horizons."""
        return list(next(iter(self.by_seed.values()))["eval_samples"])

    def points(self, seed: int, measure: str) -> Points:
        """Result at every horizon."""
        one = self.by_seed[seed]
        return list(zip(one["eval_samples"], one[f"eval_{measure}"]))

    def mean(self, measure: str, horizon: int) -> float:
        """Over seeds."""
        return statistics.fmean(one[f"eval_{measure}"][horizon] for one in self.by_seed.values())

    def fewer(self) -> float:
        """Times fewer bytes than a float32 allreduce in every step, at equal samples."""
        return statistics.fmean(
            outcome.plain_bytes(one) / max(1, one["bytes_per_rank"])
            for one in self.by_seed.values())

    def shared(self, other: Line) -> list[int]:
        """Seeds that both have."""
        return sorted(self.by_seed.keys() & other.by_seed.keys())


def lines_of(records: Iterable[Record], purpose: str) -> list[Line]:
    """All methods of a workload, DDP first, then fewest bytes last."""
    groups: dict[tuple[str, float], dict[int, Record]] = {}
    for one in records:
        if one["purpose"] == purpose:
            groups.setdefault((one["method"], one["lr"]), {})[one["seed"]] = one
    found = [Line(method, lr, by_seed) for (method, lr), by_seed in groups.items()]
    return sorted(found, key=lambda line: (line.method != "ddp", line.fewer(), line.lr))


def reference(lines: Sequence[Line]) -> Line | None:
    """DDP's, the one with most seeds."""
    plain = [line for line in lines if line.method == "ddp"]
    return max(plain, key=lambda line: len(line.by_seed)) if plain else None


def gap(line: Line, ddp: Line, measure: str, horizon: int) -> Estimate:
    """Paired difference to DDP at equal samples."""
    return estimate([line.by_seed[seed][f"eval_{measure}"][horizon]
                     - ddp.by_seed[seed][f"eval_{measure}"][horizon]
                     for seed in line.shared(ddp)])


def metric_of(ddp: Line) -> str:
    """By which to say who is how far: the test loss, unless it rises with longer training."""
    losses = [ddp.mean("loss", i) for i in range(len(ddp.samples()))]
    falls = all(after < before for before, after in zip(losses, losses[1:]))
    return "loss" if falls else "accuracy"


def reached(points: Points, goal: float, metric: str) -> tuple[float, str]:
    """Samples at which a curve reaches a result, linear in their logarithm; or its first point and
    "<" where that is better already, or its last and ">" where none is as good."""
    sign = -1 if metric == "loss" else 1
    if sign * points[0][1] > sign * goal:
        return points[0][0], "<"
    found = outcome.reached_at([(math.log(x), y) for x, y in points], goal, metric)
    return (points[-1][0], ">") if found is None else (math.exp(found), "")


def factor_at(own: Points, plain: Points, horizon: int, metric: str) -> tuple[float, str]:
    """How many times DDP's samples a method needs for DDP's result of this horizon.

    At the last one, where no method ran for longer: for the result that the method has there, by
    how many samples less DDP reaches it. A bound, "<" or ">", where curves end before.
    """
    if horizon < len(plain) - 1:
        samples, bound = reached(own, plain[horizon][1], metric)
        return samples / plain[horizon][0], bound
    samples, bound = reached(plain, own[-1][1], metric)
    return own[-1][0] / samples, turned(bound)


def turned(bound: str) -> str:
    """That of the inverse."""
    return {"<": ">", ">": "<"}.get(bound, bound)


def step_factor(line: Line, ddp: Line, horizon: int, metric: str) -> Estimate:
    """Mean over seeds; a bound where it is one for any."""
    found = [factor_at(line.points(seed, metric), ddp.points(seed, metric), horizon, metric)
             for seed in line.shared(ddp)]
    if line is ddp:
        return Estimate(1.0)
    made = estimate([value for value, _ in found])
    bounds = {bound for _, bound in found if bound}
    if not bounds:
        return made
    return Estimate(made.mean, math.nan, bounds.pop() if len(bounds) == 1 else "?")


def value_at(points: Points, samples: float) -> float | None:
    """A curve's result after so many samples, linear in their logarithm; None beyond its ends."""
    for (x, y), (after, z) in zip(points, points[1:]):
        if x <= samples <= after:
            return y + (z - y) * math.log(samples / x) / math.log(after / x)
    return None


def at_equal_time(line: Line, ddp: Line, step: float, plain_step: float, measure: str
                  ) -> Estimate:
    """Difference to DDP in the time that DDP takes for the shortest horizon; where the method would
    be past its own longest by then, that one's result, and ">" says that it has time left."""
    points = [line.points(seed, measure) for seed in line.shared(ddp)]
    if not points:
        return Estimate(math.nan)
    samples = ddp.samples()[0] * plain_step / step
    last = line.samples()[-1]
    values = [value_at(one, min(samples, last)) for one in points]
    plain = [ddp.points(seed, measure)[0][1] for seed in line.shared(ddp)]
    made = estimate([own - other for own, other in zip(values, plain) if own is not None])
    bound = ("<" if measure != "accuracy" else ">") if samples > last else ""
    return dataclasses.replace(made, bound=bound)
