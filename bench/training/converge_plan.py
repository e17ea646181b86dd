# SPDX-License-Identifier: Apache-2.0
"""What is trained to convergence, and by which methods. Pure: records in, next runs out."""
from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from . import models
from .record import Record

RANKS = 4
SHARES = (0.25, 0.5, 1.0)  # horizons, by the longest
SEARCH_SEEDS = (1001, 1002)  # not those of results
GRID = (1.0, 2.0, 0.5)  # learning rates of a search, by the workload's
START_SEED = 500  # is added, so that a start has seen other orders of samples
METHODS = ("ddp", "ours-h1-int4", "ours-h1-sparse", "ours-h2-int4", "ours-h4-int2",
           "ours-h4-int2-block", "diloco-ours")


@dataclasses.dataclass(frozen=True)
class Workload:
    """A problem with its length.

    warmup  share of the longest horizon; a twentieth of the shortest unless said otherwise
    decay   last share of every horizon, in which the learning rate falls to zero
    start   name of the workload whose end, trained by DDP, this one begins with
    """

    name: str
    model: str
    dataset: str
    epochs: int
    lr: float
    weight_decay: float = 0.0
    size: tuple[tuple[str, float], ...] = ()
    samples: int = 0  # of an epoch; 0: all
    batch: int | None = None  # of a rank; None: the model's
    warmup: float = 0.0125
    decay: float = 0.2
    start: str = ""
    aim: str = ""  # what it is for

    @property
    def kind(self) -> models.Kind:
        """What the model is trained with unless said otherwise."""
        return models.KINDS[self.model]


def _bytes_model(name: str, width: int, layers: int, megabytes: int) -> Workload:
    """About 20 bytes for each parameter, each seen once."""
    length = 128
    return Workload(name, "gpt", "stdlib", 1, 2e-3, 0.1,
                    (("length", length), ("width", width), ("layers", layers)),
                    megabytes * 1000000 // length, aim="a language model, one epoch")


HALF_SIZE = (("length", 128), ("width", 96), ("layers", 4))  # of W6-half
WORKLOADS = {one.name: one for one in (
    Workload("W1", "cnn", "mnist", 3, 0.05, size=(("width", 8),), warmup=0.05,
             aim="fully converged"),
    Workload("W1-cold", "cnn", "mnist", 3, 0.05, size=(("width", 8),),
             aim="a warm-up of 17 steps instead of 70"),
    Workload("W2", "cnn", "cifar100", 24, 0.05, 5e-4, aim="near its capacity"),
    Workload("W3", "resnet", "cifar100-coarse", 30, 0.1, 5e-4, aim="BatchNorm, near convergence"),
    Workload("W4", "vgg", "cifar100", 12, 0.05, 5e-4, (("dropout", 0.5),),
             aim="overfitting, many bytes"),
    Workload("W5", "gpt", "shakespeare", 10, 2e-3, 0.1,
             (("layers", 4), ("length", 128), ("width", 128)), aim="text in several epochs"),
    _bytes_model("W6-quarter", 64, 4, 5),
    _bytes_model("W6-half", 96, 4, 10),
    _bytes_model("W6-one", 128, 5, 20),
    Workload("W7-images", "cnn", "cifar100", 12, 0.05, 5e-4, warmup=0.0, start="W2-first",
             aim="from DDP's state halfway"),
    Workload("W7-text", "gpt", "stdlib", 1, 2e-3, 0.1,
             HALF_SIZE, 5000000 // 128,
             warmup=0.0, start="W6-first", aim="from DDP's state halfway"),
    Workload("W8-images", "cnn", "cifar100-coarse", 6, 0.01, 5e-4, start="tinyimagenet",
             aim="fine-tuning"),
    Workload("W8-text", "gpt", "shakespeare-bytes", 1, 5e-4, 0.1, HALF_SIZE, 300 * 32,
             start="stdlib", aim="fine-tuning"),
)}
# Only beginnings of others, by DDP.
STARTS = {one.name: one for one in (
    Workload("W2-first", "cnn", "cifar100", 12, 0.05, 5e-4, decay=0.0),
    Workload("W6-first", "gpt", "stdlib", 1, 2e-3, 0.1, HALF_SIZE, 5000000 // 128, decay=0.0),
    Workload("tinyimagenet", "cnn", "tinyimagenet", 6, 0.05, 5e-4),
    _bytes_model("stdlib", 96, 4, 10),
)}


@dataclasses.dataclass(frozen=True)
class Planned:
    """One run."""

    workload: Workload
    method: str
    seed: int
    lr: float
    shares: tuple[float, ...] = SHARES
    is_search: bool = False

    @property
    def purpose(self) -> str:
        """What a record of it says."""
        return f"{self.workload.name}{'-search' if self.is_search else ''}"


def best_lr(records: Sequence[Record], workload: Workload, method: str) -> float:
    """By the mean test loss of the search's seeds; without a search the workload's."""
    tried: dict[float, list[float]] = {}
    for one in records:
        if (one["purpose"], one["method"]) == (f"{workload.name}-search", method):
            tried.setdefault(one["lr"], []).append(one["eval_loss"][-1])
    if not tried:
        return workload.lr
    most = max(map(len, tried.values()))
    means = {lr: statistics.fmean(all_) for lr, all_ in tried.items() if len(all_) == most}
    return min(means, key=lambda lr: means[lr])


def start_of(workload: Workload, seed: int) -> Planned | None:
    """The run that this workload begins with."""
    if not workload.start:
        return None
    start = STARTS[workload.start]
    return Planned(start, "ddp", seed + START_SEED, start.lr, (1.0,))


def everything(records: Sequence[Record], workloads: Sequence[str], methods: Sequence[str],
               seeds: Sequence[int], has_search: bool) -> Iterator[Planned]:
    """All runs in order of importance: searches of a workload, then its seeds, all methods each."""
    for workload in (WORKLOADS[name] for name in workloads):
        if has_search:
            for method in methods:
                for times in GRID:
                    for seed in SEARCH_SEEDS:
                        yield Planned(workload, method, seed, workload.lr * times, SHARES[:1],
                                      True)
        for seed in seeds:
            for method in methods:
                yield Planned(workload, method, seed, best_lr(records, workload, method))
