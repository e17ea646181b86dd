# SPDX-License-Identifier: Apache-2.0
"""Which runs make up the comparison over ranks of different speeds. Pure: records in, runs out.

For each case and model, in this order:

  ddp      learning rates with a seed of their own, then seeds 1, 2, ...: BSP's result, and its time
  others   learning rates at half of DDP's steps or time; then a walk over shares of it. Where a
           share reaches DDP's result the next smaller one is run, else the next larger one. So the
           smallest share that reaches it is found, and one that does not
"""
from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from . import plan
from .record import Record

SHARES = (0.08, 0.12, 0.17, 0.25, 0.35, 0.5, 0.7, 1.0)
START = 0.5  # of the walk, and of the search
SEARCH_SEED = 0
STEPS = 400  # of DDP
BASE_MS = {"cnn": 80.0, "resnet": 160.0, "gpt": 200.0}  # of 4 ranks; two cores are half idle then
OVERHEAD_S = 15.0  # of a run: start, evaluation


@dataclasses.dataclass(frozen=True)
class Case:
    """Ranks, their speeds, and a network."""

    speeds: tuple[float, ...]
    says: str
    published: str
    aim: str
    hosts: int
    per_host: int = 1
    bursts: int | None = None  # seed
    exchange: float = 0.0  # steps that a float32 exchange between hosts takes; 0: not shaped

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.per_host


CASES = {
    "quarter": Case((1, 1, 1, 0.25), "4 ranks, one at a quarter of the speed",
                    "16.9 to 82.1 % less (DASP)", ">= 60 % less, no more than ASP's", 4),
    "eighth": Case((1,) * 6 + (0.125,) * 2, "8 ranks, two at an eighth",
                   "82.1 % less at best (DASP)", ">= 83 % less", 8),
    "bursts": Case((1,) * 4, "4 ranks, bursts in which a step takes 5 times as long",
                   "16.9 % less at worst (DASP)", ">= 35 % less", 4, bursts=1),
    "mixed": Case((1, 0.8, 0.5, 0.25), "speeds 1, .8, .5, .25, an exchange of 2 steps", "-",
                  ">= 65 % less, and <= 0.7 of ASP's time", 4, exchange=2),
    "hosts-1": Case((1,) * 4, "2 hosts x 2 ranks, an exchange of 1 step", "34 % less (DASO)",
                    ">= 36 % less", 2, 2, exchange=1),
    "hosts-4": Case((1,) * 4, "2 hosts x 2 ranks, an exchange of 4 steps", "34 % less (DASO)",
                    ">= 75 % less, and <= 0.66 of DASO's time", 2, 2, exchange=4),
    "even": Case((1,) * 4, "4 ranks of one speed", "-", "0.97 to 1.03 of DDP's time", 4),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of the table: a method of methods.py with its settings."""

    method: str
    settings: tuple[tuple[str, str], ...] = ()
    needs_levels: bool = False  # several ranks on a host


METHODS = {
    "ddp": Entry("ddp"),
    "auto": Entry("ours", (("uneven", "auto"),)),
    "clock": Entry("ours", (("uneven", "clock"), ("wire", "float32"))),
    "shares": Entry("ours", (("batches", "yes"), ("domain", "gradient"), ("wire", "float32"))),
    "two-level": Entry("ours", (("hosts", "auto"),), needs_levels=True),
    "flat": Entry("ours", (("hosts", "flat"),), needs_levels=True),
    "lb-bsp": Entry("lb-bsp"),
    "asp": Entry("asp"),
    "staleness": Entry("staleness"),
    "nsoft": Entry("nsoft"),
    "ssp": Entry("ssp"),
    "dssp": Entry("dssp"),
    "hierarchical": Entry("hierarchical", (("inner", "2"), ("outer", "8"))),
    "postlocal": Entry("postlocal", (("period", "8"),)),
    "local": Entry("local-4"),
    "diloco": Entry("diloco", (("period", "16"),)),
    "daso-rule": Entry("daso-rule", needs_levels=True),
}


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run. seconds: of DDP, as far as it is known."""

    part: str  # search or time
    case: str
    model: str
    label: str
    share: float
    lr: float
    seed: int
    seconds: float

    @property
    def minutes(self) -> float:
        """What it will take, about."""
        return (self.share * self.seconds + OVERHEAD_S) / 60


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    cases: tuple[str, ...]
    models: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int
    steps: int
    base_ms: float | None = None

    def base_of(self, case: str, model: str) -> float:
        """Milliseconds of a step of speed 1: more ranks share the same cores."""
        base = BASE_MS[model] if self.base_ms is None else self.base_ms
        return base * max(1.0, CASES[case].ranks / 4)


def nominal_seconds(wanted: Wanted, case: str, model: str) -> float:
    """DDP's time before it is measured: it waits for the slowest, and little of an exchange hides."""
    one = CASES[case]
    pace = 1 / min(one.speeds)
    if one.bursts is not None:  # a tenth of the time, five times as slow (bench/lab/pace.py)
        pace = 1 + 4 * (1 - 0.9 ** one.ranks)
    return wanted.steps * wanted.base_of(case, model) / 1e3 * (pace + one.exchange)


def of(records: Sequence[Record], part: str, case: str, model: str, label: str) -> list[Record]:
    """The records of a cell."""
    return [one for one in records if (one["part"], one["case"], one["model"], one["label"]) == (
        part, case, model, label)]


def ddp_seconds(records: Sequence[Record], wanted: Wanted, case: str, model: str) -> float:
    """DDP's time: the mean over its seeds, or what it should be."""
    found = [one["wall_s"] for one in of(records, "time", case, model, "ddp")]
    return statistics.fmean(found) if found else nominal_seconds(wanted, case, model)


def target(records: Sequence[Record], case: str, model: str) -> float | None:
    """What counts as DDP's result: the mean of its seeds, less (or more) their spread."""
    found = of(records, "time", case, model, "ddp")
    finals = [one["final"] for one in found]
    if not finals:
        return None
    spread = statistics.stdev(finals) if len(finals) > 1 else 0.0
    return statistics.fmean(finals) + (spread if found[0]["metric"] == "loss" else -spread)


def best_lr(records: Sequence[Record], case: str, model: str, label: str) -> float | None:
    """What the search found best, if it is over."""
    found = {one["lr"]: one["final"] for one in of(records, "search", case, model, label)}
    if not set(plan.RATES[model]) <= found.keys():
        return None
    metric = of(records, "search", case, model, label)[0]["metric"]
    best = plan.RATES[model][0]
    for lr, final in found.items():
        best = lr if plan.is_better(metric, final, found[best]) else best
    return best


def next_share(reached: dict[float, bool]) -> float | None:
    """Where the walk goes on: down while DDP's result is reached, else up; None: it is over."""
    at = SHARES.index(START)
    while SHARES[at] in reached:
        before = reached[SHARES[at]]
        at += -1 if before else 1
        if not 0 <= at < len(SHARES) or reached.get(SHARES[at], before) != before:
            return None
    return SHARES[at]


def _shares(records: Sequence[Record], one: Wanted, case: str, model: str, label: str
            ) -> Iterator[float]:
    """Shares of the walk so far, and the next; those with all seeds count."""
    goal = target(records, case, model)
    found = of(records, "time", case, model, label)
    reached: dict[float, bool] = {}
    share = next_share(reached)
    while share is not None:
        yield share
        finals = [each["final"] for each in found if each["share"] == share]
        if goal is None or len(finals) < one.seeds:
            return
        mean = statistics.fmean(finals)
        reached[share] = not plan.is_better(found[0]["metric"], goal, mean)
        share = next_share(reached)


def cell(records: Sequence[Record], wanted: Wanted, case: str, model: str, label: str
         ) -> Iterator[Planned]:
    """All runs of a method in a case, as far as they are known; made ones too."""
    seconds = ddp_seconds(records, wanted, case, model)
    first = 1.0 if label == "ddp" else START
    for lr in plan.RATES[model]:
        yield Planned("search", case, model, label, first, lr, SEARCH_SEED, seconds)
    lr = best_lr(records, case, model, label)
    if lr is None:
        return
    shares = iter((1.0,)) if label == "ddp" else _shares(records, wanted, case, model, label)
    for share in shares:
        for seed in range(1, wanted.seeds + 1):
            yield Planned("time", case, model, label, share, lr, seed, seconds)


def is_wanted(case: str, label: str) -> bool:
    """Two levels need hosts of several ranks."""
    return CASES[case].per_host > 1 or not METHODS[label].needs_levels


def everything(records: Sequence[Record], wanted: Wanted) -> Iterator[Planned]:
    """All runs, DDP's first in each case."""
    for model in wanted.models:
        for case in wanted.cases:
            labels = ["ddp", *(one for one in wanted.methods if one != "ddp")]
            for label in labels:
                if is_wanted(case, label):
                    yield from cell(records, wanted, case, model, label)


def estimate(records: Sequence[Record], wanted: Wanted, case: str, model: str, label: str) -> float:
    """Minutes that a cell takes in all: a search, and three shares of the walk with all seeds."""
    seconds = ddp_seconds(records, wanted, case, model)
    search, walk = START * len(plan.RATES[model]), wanted.seeds * (0.5 + 0.35 + 0.25)
    runs = len(plan.RATES[model]) + 3 * wanted.seeds
    if label == "ddp":
        search, walk = float(len(plan.RATES[model])), float(wanted.seeds)
        runs = len(plan.RATES[model]) + wanted.seeds
    return ((search + walk) * seconds + runs * OVERHEAD_S) / 60
