# SPDX-License-Identifier: Apache-2.0
"""Which runs make up the comparison, in order of importance. Pure: records in, next runs out.

Parts, for each model:

  search    each family of methods over a grid of learning rates (DiLoCo: outer settings too), at
            full length, with seeds that the results do not use; the best is taken for every
            method of the family. The default policy adapts to the link: its search is on shaped ones
  accuracy  full runs without shaping, several seeds; bytes are counted here as well
  pace      what a step takes to compute, from which the links' rates follow
  step      short runs on shaped links: seconds for a step of every method
  whole     full runs on shaped links: ours with its defaults (it adapts to the link, so that its
            accuracy must be measured there), and one run of every method to check the product
"""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from . import models
from .record import Record

RATIOS = (4.0, 1.0, 16.0, 0.25)  # communication over computation of DDP, most telling first
SEARCH_SEED = 0
AGAIN_SEED = 4  # of the search, where two learning rates contend
SEARCHED_ON = {"tinyimagenet": "cifar100"}  # every method takes what it found for the model there
SEEDS = (1, 2, 3)
RATES = {"cnn": (0.05, 0.1, 0.025), "resnet": (0.1, 0.2, 0.05), "vgg": (0.05, 0.1, 0.025),
         "gpt": (2e-3, 4e-3, 1e-3)}
OUTER = (("0.7", "0.6"), ("0.7", "0.9"), ("1.0", "0.5"))  # DiLoCo: learning rate and momentum
EXTENSIONS = 2  # of a grid of learning rates
PERIODS = (1, 2, 4, 8, 16, 32)
FRONTIER = (*((h, wire) for wire in ("int4", "float32", "ternary") for h in (1, 2, 4, 8, 16)),
            (1, "sparse"), (2, "sparse"), (4, "sparse"))
BLOCKING = ((4, "int4"), (2, "int4"), (8, "int4"), (4, "ternary"), (8, "ternary"))
# The default policy at its cap: on loopback no wait can be as short as asked for.
CAPS = tuple((("drift_exponent", exponent), ("interval_steps", steps),
              ("target_overhead", "0.0001"), ("wire", "int4"))
             for steps in ("4", "8") for exponent in ("1", "2"))
SHORT_FRONTIER = ((1, "int4"), (2, "int4"), (4, "ternary"), (8, "ternary"), (1, "sparse"),
                  (2, "sparse"), (4, "sparse"))
STEPS = {"pace": 352, "step": 288}  # what is not timed, then whole windows (rank.py)
LONG_STEPS = {"vgg": 160}  # for "step", where each takes long


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run; None is the model's default."""

    part: str
    model: str
    method: str
    seed: int
    lr: float
    settings: tuple[tuple[str, str], ...] = ()
    ratio: float | None = None  # of a shaped run
    dataset: str | None = None


def steps_of(one: Planned) -> int:
    """Steps after which a run ends; 0: all epochs."""
    if one.part == "step" and one.model in LONG_STEPS:
        return LONG_STEPS[one.model]
    return STEPS.get(one.part, 0)


@dataclasses.dataclass(frozen=True)
class Family:
    """Methods that share what one of them found in the search."""

    representative: str
    settings: tuple[tuple[str, str], ...] = ()
    ratio: float | None = None  # of the links that its search needs


FAMILIES = {
    "ddp": Family("ddp"),
    "powersgd": Family("powersgd", (("rank", "4"),)),
    "local": Family("local-8"),
    "postlocal": Family("postlocal", (("period", "8"),)),
    "diloco": Family("diloco", (("outer_lr", "0.7"), ("outer_momentum", "0.6"),
                                ("period", "16"))),
    "ours-h1": Family("ours-h1-int4"),
    "ours-h2": Family("ours-h2-int4"),
    "ours": Family("ours-h4-int4"),
    "ours-default": Family("ours", ratio=RATIOS[0]),
}


def family_of(method: str) -> str:
    """Name of the family that a method belongs to."""
    if method == "ours":
        return "ours-default"
    for start, family in (("ddp", "ddp"), ("none", "ddp"), ("powersgd", "powersgd"),
                          ("postlocal", "postlocal"), ("hierarchical", "postlocal"),
                          ("local", "local"), ("diloco", "diloco"), ("ours-h1-", "ours-h1"),
                          ("ours-h2-", "ours-h2"), ("ours", "ours")):
        if method.startswith(start):
            return family
    raise ValueError(f"method {method!r} belongs to no family")


def text_of(settings: tuple[tuple[str, str], ...]) -> str:
    """Settings as a record has them."""
    return " ".join(f"{name}={value}" for name, value in sorted(settings))


def pairs_of(text: str) -> tuple[tuple[str, str], ...]:
    """The other way round."""
    parts = (one.partition("=") for one in text.split())
    return tuple((name, value) for name, _, value in parts)


def is_better(metric: str, a: float, b: float) -> bool:
    """Is a better than b? NaN is worst."""
    if math.isnan(a) or math.isnan(b):
        return not math.isnan(a)
    return a < b if metric == "loss" else a > b


@dataclasses.dataclass(frozen=True)
class Best:
    """Outcome of a family's search so far."""

    lr: float
    settings: tuple[tuple[str, str], ...]


def best_of(records: list[Record], model: str, family: str, dataset: str,
            seed: int | None = None) -> Best:
    """What the search found, by the mean over seeds among what was tried with most of them, or by
    one seed; before it has run: what DDP found, or the model's default."""
    dataset = SEARCHED_ON.get(dataset, dataset)
    tried: dict[Best, list[float]] = {}
    metric = ""
    for one in records:
        if (one["purpose"], one["model"], one["dataset"]) != ("search", model, dataset):
            continue
        if family_of(one["method"]) == family and one["final"] is not None and (
                seed is None or one["seed"] == seed):
            metric = one["metric"]
            tried.setdefault(Best(one["lr"], pairs_of(one["settings"])), []).append(one["final"])
    most = max(map(len, tried.values()), default=0)
    found: tuple[Best, float] | None = None
    for key, finals in tried.items():
        mean = sum(finals) / len(finals)
        if len(finals) == most and (found is None or is_better(metric, mean, found[1])):
            found = key, mean
    if found is not None:
        return found[0]
    if family != "ddp":
        return Best(best_of(records, model, "ddp", dataset).lr, FAMILIES[family].settings)
    return Best(models.KINDS[model].lr, ())


def _grid(records: list[Record], model: str, family: str, dataset: str) -> list[float]:
    """Learning rates to try: the model's, and where the best so far, of the first seed or of all,
    is the smallest or the largest of them, the next by a factor of 2, at most EXTENSIONS either
    way."""
    grid = sorted(RATES[model])
    tried = {one["lr"] for one in records if (one["purpose"], one["model"], one["dataset"]) == (
        "search", model, dataset) and family_of(one["method"]) == family}
    best = {best_of(records, model, family, dataset, seed).lr for seed in (SEARCH_SEED, None)}
    for _ in range(EXTENSIONS):
        if tried.issuperset(grid) and max(best) >= grid[-1]:
            grid.append(grid[-1] * 2)
        elif tried.issuperset(grid) and min(best) <= grid[0]:
            grid.insert(0, grid[0] / 2)
    return [*RATES[model], *(lr for lr in grid if lr not in RATES[model])]


def _contenders(records: list[Record], model: str, family: str, dataset: str) -> list[float]:
    """Learning rates that need a second seed, because neighbors in the grid may differ by less than
    seeds do: the first seed's best and DDP's, if both were tried; of DDP itself the best two."""
    tried = {one["lr"]: one["final"] for one in records if one["final"] is not None and (
        one["purpose"], one["model"], one["dataset"], one["seed"], family_of(one["method"])) == (
            "search", model, dataset, SEARCH_SEED, family)}
    if len(tried) < len(RATES[model]):
        return []
    first = best_of(records, model, family, dataset, SEARCH_SEED).lr
    if family == "ddp":
        others = [one for one in records if one["lr"] != first]
        return [first, best_of(others, model, family, dataset, SEARCH_SEED).lr]
    plain = best_of(records, model, "ddp", dataset).lr
    return [first, plain] if plain in tried and plain != first else []


def search(records: list[Record], model: str, family: str, dataset: str) -> Iterator[Planned]:
    """Learning rates of a family, the contenders once more; for DiLoCo then the outer settings at
    the best of them."""
    if dataset in SEARCHED_ON:
        return
    one = FAMILIES[family]
    for lr in _grid(records, model, family, dataset):
        yield Planned("search", model, one.representative, SEARCH_SEED, lr, one.settings,
                      one.ratio, dataset)
    for lr in _contenders(records, model, family, dataset):
        yield Planned("search", model, one.representative, AGAIN_SEED, lr, one.settings,
                      one.ratio, dataset)
    lr = best_of(records, model, family, dataset).lr
    if family == "diloco":
        for outer_lr, momentum in OUTER:
            settings = {**dict(one.settings), "outer_lr": outer_lr, "outer_momentum": momentum}
            yield Planned("search", model, one.representative, SEARCH_SEED, lr,
                          tuple(sorted(settings.items())), dataset=dataset)


def _tuned(records: list[Record], part: str, model: str, method: str, seed: int, dataset: str,
           ratio: float | None = None) -> Planned:
    """A run with what its family's search found."""
    is_plain = method == "ours" and ratio is not None and ratio < 1  # it stays exact: DDP's rate
    best = best_of(records, model, "ddp" if is_plain else family_of(method), dataset)
    settings = () if method.startswith(("ours", "local", "none", "ddp")) else best.settings
    if method == "hierarchical":
        settings = (("inner", "4"), ("outer", "8"))
    if part == "step" and method in ("postlocal", "hierarchical"):
        settings = tuple(sorted({**dict(settings), "warmup": "0"}.items()))
    if part == "step" and method == "powersgd":
        settings = tuple(sorted({**dict(settings), "start": "2"}.items()))
    if part == "step" and method.startswith("ours"):
        settings = (("warmup_steps", "0"),)
    return Planned(part, model, method, seed, best.lr, settings, ratio, dataset)


def peers(model: str) -> tuple[str, ...]:
    """What ours is compared with in accuracy and time, DDP first."""
    del model
    return ("ddp", "postlocal", "diloco", "powersgd", "ddp-fp16", "local-8", "hierarchical")


def frontier(model: str) -> tuple[str, ...]:
    """Fixed pairs of interval and wire; first some whose mean comes in time (-block), by which
    one sees what the delay of the default overlap costs."""
    pairs = FRONTIER if model == "cnn" else SHORT_FRONTIER
    pairs += ((16, "ternary"), (8, "sparse")) if model == "gpt" else ()  # adaptive steps bear more
    late = tuple(f"ours-h{h}-{wire}" for h, wire in pairs)
    exact = BLOCKING if model == "cnn" else BLOCKING[:1]
    return tuple(f"ours-h{h}-{wire}-block" for h, wire in exact) + late


def accuracy(records: list[Record], model: str, dataset: str, seeds: tuple[int, ...],
             methods: tuple[str, ...]) -> Iterator[Planned]:
    """Full runs without shaping, first seeds first."""
    for seed in seeds:
        for method in methods:
            yield _tuned(records, "accuracy", model, method, seed, dataset)


def caps(records: list[Record], model: str, dataset: str, seeds: tuple[int, ...]
         ) -> Iterator[Planned]:
    """What the default policy allows where the network asks for as much as it gives."""
    lr = best_of(records, model, "ours-default", dataset).lr
    for seed in seeds:
        for settings in CAPS:
            yield Planned("accuracy", model, "ours", seed, lr, settings, dataset=dataset)


def shaped(records: list[Record], model: str, dataset: str) -> Iterator[Planned]:
    """Step times and whole runs on shaped links."""
    yield _tuned(records, "pace", model, "none", SEARCH_SEED, dataset)
    yield from search(records, model, "ours-default", dataset)
    for ratio in RATIOS:
        exact = ("ours-h1-float32",) if ratio < 1 else ()  # where overlap alone hides it
        for method in ("none", *peers(model), "local-32", "ours-h4-int4", *exact):
            yield _tuned(records, "step", model, method, SEARCH_SEED, dataset, ratio)
        yield _tuned(records, "whole", model, "ours", SEEDS[0], dataset, ratio)
    for method in peers(model):
        yield _tuned(records, "whole", model, method, SEEDS[0], dataset, RATIOS[0])
    for seed in SEEDS[1:]:
        for ratio in RATIOS:
            yield _tuned(records, "whole", model, "ours", seed, dataset, ratio)


def stages(records: list[Record], model: str, dataset: str) -> list[Iterator[Planned]]:
    """All runs of a model in order of importance. Later ones depend on the records of earlier
    ones, so ask again after each run and take the first that has no record."""
    def first() -> Iterator[Planned]:
        yield from search(records, model, "ddp", dataset)
        yield from accuracy(records, model, dataset, SEEDS, ("ddp",))
        yield from search(records, model, "ours", dataset)
        yield from search(records, model, "ours-h1", dataset)
        yield from search(records, model, "ours-h2", dataset)
        yield from accuracy(records, model, dataset, SEEDS[:1], frontier(model))

    def second() -> Iterator[Planned]:
        for family in ("postlocal", "diloco", "powersgd", "local"):
            yield from search(records, model, family, dataset)
        yield from accuracy(records, model, dataset, SEEDS[:1], peers(model)[1:])

    def fourth() -> Iterator[Planned]:
        if model == "cnn":
            yield from caps(records, model, dataset, SEEDS)
        local = tuple(f"local-{h}" for h in PERIODS)
        yield from accuracy(records, model, dataset, SEEDS[:1], local)
        yield from accuracy(records, model, dataset, SEEDS[1:], frontier(model))
        yield from accuracy(records, model, dataset, SEEDS[1:], peers(model)[1:])
        yield from accuracy(records, model, dataset, SEEDS[1:], local)

    return [first(), second(), shaped(records, model, dataset), fourth()]


def everything(records: list[Record], wanted: list[tuple[str, str]]) -> Iterator[Planned]:
    """All runs of several (model, dataset); the first of them is one stage ahead of the rest."""
    parts = [stages(records, model, dataset) for model, dataset in wanted]
    for i in range(len(parts[0]) + 1):
        if i < len(parts[0]):
            yield from parts[0][i]
        for others in parts[1:] if i else ():
            yield from others[i - 1]
