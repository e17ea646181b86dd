#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a wire format costs in accuracy, before it is written: a simulation of four ranks in torch.

    python3 bench/training/wire_trials.py --data DIR --format sparse --domain parameter --seed 1

One process trains a network of train.py (its data, schedule and batches) at h = 1. Both
phases are coded, both with error feedback. Prints one JSON line. --optimizer adam --domain
momentum is 1-bit Adam (Tang et al., arXiv:2102.02888), whatever the format: after --warm of the
steps, with gradients in int4, its second moment is frozen, and ranks exchange first moments.
--optimizer adam --domain parameter is local Adam, --interval steps long, after as many. --late 1
applies each mean gradient a step later, as overlap across the step's end would.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from training import data, models, rank

RANKS = 4
Format = Callable[[Tensor], Tensor]  # (rows, elements) to what is decoded


def blocks(x: Tensor, block: int) -> Tensor:
    """(rows, elements) to (rows, blocks, block), with zeros at the end."""
    return functional.pad(x, (0, -x.shape[-1] % block)).unflatten(-1, (-1, block))


def uniform(x: Tensor, levels: int, block: int) -> Tensor:
    """Equal steps up to the block's largest; levels 1 is ternary with steps of the largest."""
    y = blocks(x, block)
    step = (y.abs().amax(-1, keepdim=True) / levels).clamp(min=1e-30)
    return (torch.round(y / step) * step).flatten(-2)[:, :x.shape[-1]]


def two_means(x: Tensor, block: int) -> Tensor:
    """A sign and one of two magnitudes fitted to the block, as wire/ternary.c does it."""
    y = blocks(x, block)
    magnitude = y.abs()
    total = magnitude.sum(-1, keepdim=True)
    threshold = 1.1 * magnitude.square().mean(-1, keepdim=True).sqrt()
    inner = outer = threshold
    for _ in range(3):
        high = magnitude >= threshold
        count = high.sum(-1, keepdim=True)
        above = torch.where(high, magnitude, 0.0).sum(-1, keepdim=True)
        outer = torch.where(count > 0, above / count.clamp(min=1), total / block)
        inner = torch.where(count < block, (total - above) / (block - count).clamp(min=1), outer)
        threshold = (inner + outer) / 2
    decoded = torch.where(magnitude >= threshold, outer, inner) * y.sign()
    return decoded.flatten(-2)[:, :x.shape[-1]]


def rotated(code: Format, block: int) -> Format:
    """Blocks turned by a Hadamard matrix with random signs before they are coded, and back: all
    elements of a block become alike (as in Suresh et al., arXiv:1611.00429)."""
    turn = torch.ones(1, 1)
    while len(turn) < block:
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)])
    signs = torch.randint(2, (block, 1), generator=torch.Generator().manual_seed(7)) * 2.0 - 1.0
    turn = signs * turn / block ** 0.5

    def coded(x: Tensor) -> Tensor:
        decoded = blocks(code((blocks(x, block) @ turn).flatten(-2)), block)
        return (decoded @ turn.T).flatten(-2)[:, :x.shape[-1]]
    return coded


def sign(x: Tensor, block: int) -> Tensor:
    """One bit, and the block's mean magnitude."""
    y = blocks(x, block)
    return (y.sign() * y.abs().mean(-1, keepdim=True)).flatten(-2)[:, :x.shape[-1]]


def largest(x: Tensor, share: int, twice: bool, least: float, block: int) -> Tensor:
    """One of `share` elements; all with one magnitude.

    twice: that is two thresholds, and at least `least` times the block's largest, whose half is
    then the threshold; else the mean of what is sent.
    """
    y = blocks(x, block)
    most, where = y.abs().topk(block // share, dim=-1)
    if twice:
        magnitude = torch.maximum(2 * most[..., -1:], least * most[..., :1])
        sent = torch.where(most >= magnitude / 2, magnitude, 0.0)
    else:
        sent = most.mean(-1, keepdim=True).expand_as(most)
    decoded = torch.zeros_like(y).scatter_(-1, where, sent) * y.sign()
    return decoded.flatten(-2)[:, :x.shape[-1]]


class Spread:
    """As sparse, with as many elements in all, but more of them where the last mean was larger.

    Of the blocks, a quarter sends two of `share` elements, a quarter one, half half a one. Both
    phases know the last decoded mean, so the lengths need not be sent.
    """

    def __init__(self, share: int, block: int) -> None:
        self.share, self.block = share, block
        self.counts: Tensor | None = None  # by block

    def learn(self, mean: Tensor) -> None:
        """What all ranks decoded."""
        energy = blocks(mean[None], self.block).square().sum(-1)[0]
        counts = torch.full((len(energy),), self.block // self.share // 2)
        order = energy.argsort(descending=True)
        quarter = len(energy) // 4
        counts[order[:quarter]] = 2 * self.block // self.share
        counts[order[quarter:2 * quarter]] = self.block // self.share
        self.counts = counts

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, elements) to what is decoded."""
        if self.counts is None:
            return largest(x, self.share, True, 0.5, self.block)
        y = blocks(x, self.block)
        most, where = y.abs().topk(2 * self.block // self.share, dim=-1)
        counts = self.counts.expand(y.shape[:-1])[..., None]
        magnitude = torch.maximum(2 * most.gather(-1, counts - 1), 0.5 * most[..., :1])
        is_sent = (torch.arange(most.shape[-1]) < counts) & (most >= magnitude / 2)
        sent = torch.where(is_sent, magnitude, 0.0)
        decoded = torch.zeros_like(y).scatter_(-1, where, sent) * y.sign()
        return decoded.flatten(-2)[:, :x.shape[-1]]


def format_of(name: str, share: int, block: int) -> Format | None:
    """The format of this name; None is float32."""
    formats: dict[str, Format | None] = {
        "float32": None,
        "int4": lambda x: uniform(x, 7, block),
        "ternary": lambda x: two_means(x, block),
        "ternary-rotated": rotated(lambda x: two_means(x, block), block),
        "sign": lambda x: sign(x, block),
        "steps": lambda x: uniform(x, 1, block),
        "mean": lambda x: largest(x, share, False, 0.0, block),
        "twice": lambda x: largest(x, share, True, 0.0, block),
        "sparse": lambda x: largest(x, share, True, 0.5, block),
        "spread": Spread(share, block),
    }
    return formats[name]


class Exchange:
    """Mean over ranks in two coded phases."""

    def __init__(self, code: Format | None, elements: int) -> None:
        self.code = code
        self.held, self.owned = torch.zeros(RANKS, elements), torch.zeros(1, elements)

    def mean(self, x: Tensor) -> Tensor:
        """Of the rows, as all ranks decode it."""
        if self.code is None:
            return x.mean(0)
        self.held += x
        sent = self.code(self.held)
        self.held -= sent
        self.owned += sent.mean(0)
        decoded = self.code(self.owned)
        self.owned -= decoded
        if isinstance(self.code, Spread):
            self.code.learn(decoded[0])
        return decoded[0]


class Sgd:
    """Momentum 0.9; its exchange is of gradients, or of what parameters moved by."""

    def __init__(self, options: argparse.Namespace, exchange: Exchange, elements: int) -> None:
        self.is_gradient, self.exchange = options.domain == "gradient", exchange
        self.momentum = torch.zeros(1 if self.is_gradient else RANKS, elements)
        self.waiting = [torch.zeros(elements)] * options.late  # means that come later

    def move(self, gradient: Tensor, lr: float) -> Tensor:
        """By how much the common parameters move."""
        if self.is_gradient:
            self.waiting.append(self.exchange.mean(gradient))
            self.momentum = 0.9 * self.momentum + self.waiting.pop(0)
            return lr * self.momentum[0]
        self.momentum = 0.9 * self.momentum + gradient
        return self.exchange.mean(lr * self.momentum)


class Adam:
    """Its exchange is of gradients, or, once frozen, of first moments; decay is by the caller."""

    def __init__(self, options: argparse.Namespace, exchange: Exchange, elements: int,
                 total: int) -> None:
        self.is_momentum = options.domain == "momentum"
        self.exchange = exchange
        self.warm = Exchange(format_of("int4", 1, options.block), elements)
        self.frozen_at = int(options.warm * total) if self.is_momentum else total
        self.first, self.second, self.steps = torch.zeros(elements), torch.zeros(elements), 0
        self.floor, self.block, self.beta2 = options.floor, options.block, options.beta2

    def move(self, gradient: Tensor, lr: float) -> Tensor:
        """By how much the common parameters move."""
        self.steps += 1
        if self.steps > self.frozen_at:
            self.first = self.exchange.mean(0.9 * self.first + 0.1 * gradient)
            corrected = 1 - self.beta2 ** self.frozen_at
        else:
            mean = (self.warm if self.is_momentum else self.exchange).mean(gradient)
            self.first = 0.9 * self.first + 0.1 * mean
            self.second = self.beta2 * self.second + (1 - self.beta2) * mean.square()
            corrected = 1 - self.beta2 ** self.steps
        root = (self.second / corrected).sqrt()
        if self.steps > self.frozen_at and self.floor > 0:
            y = blocks(root[None], self.block)
            root = torch.maximum(y, self.floor * y.mean(-1, keepdim=True)).flatten()[:len(root)]
        return lr / (1 - 0.9 ** self.steps) * self.first / (root + 1e-8)


class LocalAdam:
    """Adam of every rank for itself, --interval steps long, then an exchange of what they moved by.

    Gradients are exchanged in int4 up to --warm. After that each rank has second moments of its
    own, with a memory as many times as long as there are ranks (--second own), or those of the
    mean gradients are kept as they are (frozen), or they keep their pattern, and each tensor's
    size follows that of the rank's own gradients (scaled).
    """

    def __init__(self, options: argparse.Namespace, exchange: Exchange, sizes: list[int],
                 total: int) -> None:
        elements = sum(sizes)
        self.options, self.exchange, self.sizes = options, exchange, sizes
        self.warm = Exchange(format_of("int4", 1, options.block), elements)
        self.warm_steps = int(options.warm * total)
        self.first, self.second = torch.zeros(RANKS, elements), torch.zeros(RANKS, elements)
        self.apart = torch.zeros(RANKS, elements)  # of each rank, from the common parameters
        self.energy = torch.zeros(RANKS, len(sizes))  # of the ranks' own gradients, by tensor
        self.before = self.energy  # when local steps began
        self.steps = 0

    def _measure(self, gradient: Tensor) -> None:
        now = torch.stack([part.square().mean(-1) for part in gradient.split(self.sizes, -1)], -1)
        memory = max((1 - self.options.beta2) / RANKS, 1 / self.steps)
        self.energy = self.energy + memory * (now - self.energy)

    def _keep(self) -> None:
        """Second moments from here on: unbiased, and none far below its neighbours."""
        self.before = self.energy
        root = (self.second / (1 - self.options.beta2 ** self.warm_steps)).sqrt()
        parts = []
        for part in root.split(self.sizes, -1):
            y = blocks(part, self.options.block)
            y = torch.maximum(y, self.options.floor * y.mean(-1, keepdim=True))
            parts.append(y.flatten(-2)[:, :part.shape[-1]])
        self.second = torch.cat(parts, -1).square()

    def _root(self) -> Tensor:
        if self.steps <= self.warm_steps or self.options.second == "own":
            return (self.second / (1 - self.options.beta2 ** self.steps)).sqrt()
        if self.options.second == "frozen":
            return self.second.sqrt()
        times = (self.energy / self.before).repeat_interleave(torch.tensor(self.sizes), -1)
        return (self.second * times).sqrt()

    def move(self, gradient: Tensor, lr: float) -> Tensor:
        """By how much the common parameters move; 0 within local steps."""
        self.steps += 1
        is_local = self.steps > self.warm_steps
        self._measure(gradient)
        if not is_local:
            gradient = self.warm.mean(gradient).expand(RANKS, -1)
        elif self.steps == self.warm_steps + 1 and self.options.second != "own":
            self._keep()
        self.first = 0.9 * self.first + 0.1 * gradient
        if not is_local or self.options.second == "own":
            memory = (1 - self.options.beta2) / (RANKS if is_local else 1)
            self.second += memory * (gradient.square() - self.second)
        step = lr / (1 - 0.9 ** self.steps) * self.first / (self._root() + 1e-8)
        if not is_local:
            return step[0]
        self.apart -= step
        if (self.steps - self.warm_steps) % self.options.interval != 0:
            return torch.zeros_like(step[0])
        moved = -self.exchange.mean(self.apart)
        self.apart.zero_()
        return moved


def tested(model: torch.nn.Module, dataset: data.Dataset, shards: data.Shards) -> dict[str, float]:
    """Mean loss and accuracy in percent of the test split."""
    loss = right = count = 0.0
    with torch.no_grad():
        for x, y in data.test_batches(dataset, shards, 0):
            output = model(x)
            loss += rank.loss_of(output, y).item() * y.numel()
            right += float((output.argmax(-1) == y).sum())
            count += y.numel()
    return {"loss": loss / count, "accuracy": 100 * right / count}


def train(options: argparse.Namespace) -> dict[str, object]:
    """A whole run; the result of its last step."""
    kind = models.KINDS[options.model]
    dataset = data.load(kind.dataset, options.data, options.cache)
    torch.manual_seed(options.seed)
    model = models.build(options.model, dataset.classes, {})
    parameters = list(model.parameters())
    common = torch.cat([p.detach().reshape(-1) for p in parameters])

    def put(whole: Tensor) -> None:
        for p, part in zip(parameters, whole.split([p.numel() for p in parameters])):
            p.data.copy_(part.view(p.shape))

    samples = data.training_samples(dataset, options.samples or kind.samples, 64)
    shards = [data.Shards(samples, RANKS, r, kind.batch, options.seed) for r in range(RANKS)]
    epochs = options.epochs or kind.epochs
    total = shards[0].steps * epochs
    exchange = Exchange(format_of(options.format, options.share, options.block), len(common))
    is_adam = options.optimizer == "adam"
    optimizer: Adam | LocalAdam | Sgd
    if is_adam and options.domain == "parameter":
        optimizer = LocalAdam(options, exchange, [p.numel() for p in parameters], total)
    elif is_adam:
        optimizer = Adam(options, exchange, len(common), total)
    else:
        optimizer = Sgd(options, exchange, len(common))
    gradient = torch.empty(RANKS, len(common))
    step = 0
    for epoch in range(epochs):
        for batches in zip(*(data.training_batches(dataset, s, epoch) for s in shards)):
            for r, (x, y) in enumerate(batches):
                if isinstance(optimizer, LocalAdam):
                    put(common + optimizer.apart[r])
                model.zero_grad(set_to_none=True)
                rank.loss_of(model(x), y).backward()
                torch.cat([p.grad.reshape(-1) for p in parameters  # type: ignore[union-attr]
                           ], out=gradient[r])
            lr = options.lr * rank.rate_factor(step, total, kind.warmup)
            if is_adam:
                common *= 1 - lr * kind.weight_decay
            common = common - optimizer.move(gradient, lr)
            put(common)
            step += 1
    if options.domain == "parameter":  # what the library's last synchronization sends
        put(common - exchange.held.mean(0) - exchange.owned[0])
    everything = data.Shards(samples, 1, 0, kind.batch, 0)
    return {**vars(options), **tested(model.eval(), dataset, everything)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of CIFAR-100")
    parser.add_argument("--cache", help="folder for decoded data")
    parser.add_argument("--format", default="sparse",
                        choices=("float32", "int4", "ternary", "ternary-rotated", "sign", "steps",
                                 "mean", "twice", "sparse", "spread"))
    parser.add_argument("--model", default="cnn", choices=("cnn", "gpt"))
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "adam"))
    parser.add_argument("--domain", default="gradient",
                        choices=("gradient", "parameter", "momentum"))
    parser.add_argument("--lr", type=float, help="default 0.05, with Adam 0.001")
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--warm", type=float, default=0.15,
                        help="share of the steps before the second moment is frozen")
    parser.add_argument("--floor", type=float, default=0.0,
                        help="least root of a frozen second moment, by the mean of its block")
    parser.add_argument("--second", default="frozen", choices=("frozen", "scaled", "own"),
                        help="second moments of Adam in local steps")
    parser.add_argument("--interval", type=int, default=1, help="local steps of Adam")
    parser.add_argument("--late", type=int, default=0, help="steps; gradients of SGD only")
    parser.add_argument("--share", type=int, default=8, help="one of so many elements is sent")
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=0, help="default the model's")
    parser.add_argument("--samples", type=int, default=0, help="default the model's")
    torch.set_num_threads(1)
    wanted = parser.parse_args()
    if wanted.domain == "momentum" and wanted.optimizer == "sgd":
        parser.error(f"--domain {wanted.domain} is not for {wanted.optimizer}")
    if wanted.late and (wanted.domain, wanted.optimizer) != ("gradient", "sgd"):
        parser.error("--late is for --domain gradient and --optimizer sgd")
    wanted.lr = wanted.lr or (0.001 if wanted.optimizer == "adam" else 0.05)
    print(json.dumps(train(wanted)), flush=True)
