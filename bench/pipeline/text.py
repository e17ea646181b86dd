# SPDX-License-Identifier: Apache-2.0
"""A small transformer over bytes, as a list of layers, and the text that it learns: the sources of
Python's own library, which every machine has."""
from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable

import torch
from msdu._stages_run import Form, Forms
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
LR = 1e-3


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model, and of a step of one pipeline: micro-batches of `samples` texts."""

    width: int = 128
    blocks: int = 8
    length: int = 64
    samples: int = 4
    micro_batches: int = 8
    seed: int = 1

    @property
    def layers(self) -> int:
        """With the embedding and the head."""
        return self.blocks + 2

    def forms(self) -> list[Forms]:
        """Of what enters each layer, and leaves the last."""
        texts = (self.samples, self.length)
        between = (Form((*texts, self.width), torch.float32),)
        logits = (Form((*texts, BYTES), torch.float32),)
        return [(Form(texts, torch.int64),), *[between] * (self.layers - 1), logits]


class Embed(nn.Module):
    """A byte and where it is."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.byte = nn.Embedding(BYTES, size.width)
        self.place = nn.Parameter(0.02 * torch.randn(size.length, size.width))

    def forward(self, x: Tensor) -> Tensor:
        return self.byte(x) + self.place


class Block(nn.Module):
    """Attention to what came before, and a perceptron; norms in front."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = max(1, size.width // 32)
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.queries = nn.Linear(size.width, 3 * size.width)
        self.mixed = nn.Linear(size.width, size.width)
        self.inner = nn.Linear(size.width, 4 * size.width)
        self.outer = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        texts, length, width = x.shape
        parts = self.queries(self.first(x)).view(texts, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixed(seen.transpose(1, 2).reshape(texts, length, width))
        return x + self.outer(functional.gelu(self.inner(self.second(x))))


class Head(nn.Module):
    """The next byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.logits = nn.Linear(size.width, BYTES)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


def layer(size: Size, number: int) -> nn.Module:
    """The same weights whoever makes it."""
    torch.manual_seed(size.seed + number)
    kind = Embed if number == 0 else Head if number == size.layers - 1 else Block
    return kind(size)


def factories(size: Size) -> list[Callable[[], nn.Module]]:
    """Of all layers, for msdu.pipeline()."""
    return [functools.partial(layer, size, number) for number in range(size.layers)]


def loss(made: Tensor, target: Tensor) -> Tensor:
    """Nats a byte."""
    return functional.cross_entropy(made.flatten(0, 1), target.flatten())


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Of all methods."""
    return torch.optim.AdamW(parameters, lr=LR)


class Text:
    """Batches at random places, by seed and step."""

    def __init__(self, size: Size) -> None:
        files = sorted(pathlib.Path(dataclasses.__file__).parent.glob("*.py"))[:60]
        content = b"".join(file.read_bytes() for file in files)
        self._bytes = torch.frombuffer(bytearray(content), dtype=torch.uint8).long()
        self._size = size

    def example(self) -> tuple[Tensor, Tensor]:
        """A micro-batch."""
        x, y = self.batch(0)
        return x[:self._size.samples], y[:self._size.samples]

    def batch(self, step: int, replica: int = 0) -> tuple[Tensor, Tensor]:
        """Of one pipeline in a step."""
        size = self._size
        numbers = torch.Generator().manual_seed(1000003 * replica + step)
        count = size.samples * size.micro_batches
        begins = torch.randint(len(self._bytes) - size.length - 1, (count,), generator=numbers)
        places = begins[:, None] + torch.arange(size.length + 1)
        found = self._bytes[places]
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()
