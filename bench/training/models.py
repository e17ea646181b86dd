# SPDX-License-Identifier: Apache-2.0
"""Models of the comparison, from few to many bytes per operation; sizes are parameters.

The defaults, all but resnet18, are small enough for four ranks on two cores; the sizes of the papers are reached
with --size, such as `depth=20,width=16` for the ResNet-20 of arXiv:1512.03385, section 4.2.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class SmallCnn(nn.Module):
    """Three convolutions and one linear layer, without normalization."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths[:-1], widths[1:]))
        self.head = nn.Linear(widths[-1] * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) to (n, classes)."""
        for convolution in self.convolutions:
            x = functional.max_pool2d(functional.relu(convolution(x)), 2)
        y: Tensor = self.head(x.flatten(1))
        return y


class Block(nn.Module):
    """Two convolutions with a shortcut; option A of arXiv:1512.03385 (no parameters in it)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.stride, self.missing = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        y = self.second_norm(self.second(y))
        shortcut = functional.pad(x[:, :, ::self.stride, ::self.stride],
                                  (0, 0, 0, 0, 0, self.missing))
        return functional.relu(y + shortcut)


class Residual(nn.Module):
    """Blocks behind one convolution; each stage halves the image and doubles the width."""

    def __init__(self, classes: int, stages: int, blocks_each: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage in range(stages):
            for i in range(blocks_each):
                outputs = width << stage
                blocks.append(Block(inputs, outputs, 2 if stage and i == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) to (n, classes)."""
        x = self.blocks(functional.relu(self.stem_norm(self.stem(x))))
        y: Tensor = self.head(x.mean((2, 3)))
        return y


class ResNet(Residual):
    """ResNet for 32x32 images (arXiv:1512.03385, section 4.2): depth 6 n + 2, three stages."""

    def __init__(self, classes: int, depth: int = 8, width: int = 16) -> None:
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth {depth} is not 6 n + 2 with n at least 1")
        super().__init__(classes, 3, (depth - 2) // 6, width)


class ResNet18(Residual):
    """The blocks of ResNet-18 (arXiv:1512.03385, table 1), shortcuts of option A, behind a stem for
    32x32 images: 11 million parameters, for a GPU."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__(classes, 4, 2, width)


class WideVgg(nn.Module):
    """Few convolutions before two large linear layers: many bytes for each operation.

    The shape of VGG (arXiv:1409.1556), whose linear layers hold most of the parameters. Without
    normalization it learns at once only from weights scaled to the inputs (arXiv:1502.01852), and
    from a last layer so small that it starts without an opinion (VGG's own 0.01).
    """

    def __init__(self, classes: int, width: int = 16, hidden: int = 1024,
                 dropout: float = 0.0) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths[:-1], widths[1:]))
        self.first = nn.Linear(widths[-1] * 16, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, classes)
        self.dropout = dropout
        self.generator: torch.Generator | None = None  # of dropout; None: torch's own
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 32, 32) to (n, classes)."""
        for convolution in self.convolutions:
            x = functional.max_pool2d(functional.relu(convolution(x)), 2)
        x = x.flatten(1)
        for layer in (self.first, self.second):
            x = functional.relu(layer(x))
            if self.training and self.dropout > 0:
                kept = torch.empty_like(x).bernoulli_(1 - self.dropout, generator=self.generator)
                x = x * kept / (1 - self.dropout)
        y: Tensor = self.head(x)
        return y


class Layer(nn.Module):
    """A transformer layer: causal attention and two linear layers, normalized before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mix_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        count, length, width = x.shape
        parts = self.joined(self.attention_norm(x)).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, width))
        y: Tensor = self.shrink(functional.gelu(self.grow(self.mix_norm(x))))
        return x + y


class CharacterGpt(nn.Module):
    """A small transformer over characters, in the manner of GPT-2."""

    def __init__(self, classes: int, width: int = 96, layers: int = 3, heads: int = 4,
                 length: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, length) characters to (n, length, classes)."""
        x = self.characters(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(self.norm(x))
        return y


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model, and how it is trained unless options say otherwise.

    samples, epochs  of a run on two cores; batch is per rank; warmup is a share of all steps
    """

    build: Callable[..., nn.Module]
    dataset: str
    optimizer: str
    lr: float
    batch: int
    epochs: int
    samples: int
    weight_decay: float
    warmup: float = 0.05


KINDS = {
    "cnn": Kind(SmallCnn, "cifar100", "sgd", 0.05, 32, 6, 25000, 0.0),
    "resnet": Kind(ResNet, "cifar100", "sgd", 0.1, 32, 6, 12800, 5e-4),
    "resnet18": Kind(ResNet18, "cifar100", "sgd", 0.1, 32, 10, 0, 5e-4),
    "vgg": Kind(WideVgg, "cifar100", "sgd", 0.05, 32, 6, 12800, 5e-4),
    "gpt": Kind(CharacterGpt, "shakespeare", "adamw", 2e-3, 8, 2, 15000, 0.1),
}


def build(name: str, classes: int, size: dict[str, Any]) -> nn.Module:
    """The model, channels last where it has images; initialized from torch's present seed."""
    model = KINDS[name].build(classes, **size)
    return model if name == "gpt" else model.to(memory_format=torch.channels_last)  # type: ignore


def optimizer(name: str, model: nn.Module, lr: float, weight_decay: float
              ) -> torch.optim.Optimizer:
    """SGD with momentum 0.9, or AdamW with the betas usual for small language models."""
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr, (0.9, 0.95), weight_decay=weight_decay)
    raise ValueError(f"optimizer {name!r} is neither sgd nor adamw")
