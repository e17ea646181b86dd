#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the model profiles that `msdu bench overlap` replays.

A profile is what overlap depends on: for each layer, in the order of the forward pass, its tensors
and the time of its forward and backward pass. Shapes are the published ones; times are counted
FLOPs over a rate (--tflops), so they say how the layers compare and not how fast a device is;
`msdu bench overlap --ratio` sets communication over computation apart from them.

What is counted: multiplications and additions of convolutions and matrix products, two for each
multiply-add. Normalization, activations, lookups and the optimizer count nothing. A backward pass
takes two products for each one of the forward pass, gradients of the weights and of the input; the
first layer of a convolutional network needs no gradient of its input.

Sources:
  ResNet-50: He et al., "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), table 1,
    with the stride in the 3 x 3 convolution as torchvision has it ("ResNet V1.5").
  VGG-16: Simonyan and Zisserman (arXiv:1409.1556), table 1, column D.
  BERT-large: Devlin et al. (arXiv:1810.04805), section 3; vocabulary of the uncased model.
  GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners", table 2 (the
    smallest, 124 million parameters as counted, and the largest); input and output embedding are
    one tensor, so its gradient is complete last and it is needed first.
  Multiply-adds of an image: torchvision's model documentation (4.09 and 15.47 thousand million).

BERT-large has what pipelines need, too: bytes that a layer hands on, and those it keeps for its
backward pass. These are Korthikanti et al. (arXiv:2205.05198), section 4.1, in float32 and with
masks of a byte: 25 t w + 9 a t l for attention and its normalization, 41 t w for the layers behind
it (t tokens, w width, a heads, l length).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]
Tensors = tuple[tuple[str, Shape], ...]  # names and shapes
TFLOPS = 100.0  # default rate: about a third of the 312 Tera-FLOP/s (dense, bf16) of an A100


@dataclass(frozen=True)
class Layer:
    """One layer: parameters, and FLOPs of the forward and backward pass for the whole batch."""

    name: str
    tensors: Tensors
    forward: float
    backward: float
    output: int = 0  # bytes; 0: not said, as what it keeps
    kept: int = 0


@dataclass(frozen=True)
class Model:
    """What a profile is made of; `parameters` is the published total that make() checks."""

    compute: str
    source: str
    parameters: int
    layers: list[Layer]
    samples: int = 0  # of a batch; 0: not said


def count_of(shape: Shape) -> int:
    """Elements of a tensor."""
    count = 1
    for extent in shape:
        count *= extent
    return count


class Images:
    """Follows a square image through convolutions; sizes in pixels, batch in images."""

    def __init__(self, batch: int, size: int) -> None:
        self.batch = batch
        self.size = size
        self.layers: list[Layer] = []

    def conv(self, name: str, shape: Shape, stride: int = 1, norm: str = "") -> None:
        """A convolution of shape (out, in, k, k), padded; with `norm` a BatchNorm, else a bias."""
        self.size = -(-self.size // stride)
        self.add_conv(name, shape, self.size, norm)

    def add_conv(self, name: str, shape: Shape, size: int, norm: str) -> None:
        """A convolution whose output is size x size pixels."""
        flops = 2.0 * count_of(shape) * size * size * self.batch
        bias: Tensors = ((f"{name}.bias", (shape[0],)),)
        rest = norm_of(norm, shape[0]) if norm else bias
        products = 1.0 if not self.layers else 2.0
        tensors = ((f"{name}.weight", shape), *rest)
        self.layers.append(Layer(name, tensors, flops, products * flops))

    def linear(self, name: str, inputs: int, outputs: int) -> None:
        """A linear layer with bias."""
        flops = 2.0 * inputs * outputs * self.batch
        self.layers.append(Layer(name, dense(name, inputs, outputs), flops, 2.0 * flops))


def bottleneck(net: Images, name: str, channels: Shape, stride: int) -> None:
    """ResNet's block of 1 x 1, 3 x 3 and 1 x 1 convolutions; channels: in, within, out."""
    before, within, after = channels
    size = net.size
    net.conv(f"{name}.conv1", (within, before, 1, 1), norm=f"{name}.bn1")
    net.conv(f"{name}.conv2", (within, within, 3, 3), stride, norm=f"{name}.bn2")
    net.conv(f"{name}.conv3", (after, within, 1, 1), norm=f"{name}.bn3")
    if before != after:
        net.add_conv(f"{name}.downsample.0", (after, before, 1, 1), size // stride,
                     f"{name}.downsample.1")


def resnet50() -> Model:
    """ResNet-50 on 64 images of 224 x 224 pixels."""
    net = Images(64, 224)
    net.conv("conv1", (64, 3, 7, 7), 2, norm="bn1")
    net.size //= 2  # max pooling
    before = 64
    for stage, (blocks, within) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            bottleneck(net, f"layer{stage + 1}.{block}", (before, within, 4 * within), stride)
            before = 4 * within
    net.linear("fc", 2048, 1000)
    return Model("64 images of 224 x 224", "arXiv:1512.03385, table 1", 25557032, net.layers)


def vgg16() -> Model:
    """VGG-16 on 64 images of 224 x 224 pixels."""
    net = Images(64, 224)
    before = 3
    index = 0
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            net.conv(f"features.{index}", (channels, before, 3, 3))
            before = channels
            index += 2  # ReLU has a number of its own
        net.size //= 2
        index += 1
    net.linear("classifier.0", 512 * 7 * 7, 4096)
    net.linear("classifier.3", 4096, 4096)
    net.linear("classifier.6", 4096, 1000)
    return Model("64 images of 224 x 224", "arXiv:1409.1556, table 1 (D)", 138357544, net.layers)


def dense(name: str, inputs: int, outputs: int) -> Tensors:
    """Weight and bias of a linear layer."""
    return ((f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,)))


def norm_of(name: str, width: int) -> Tensors:
    """Gain and bias of a normalization."""
    return ((f"{name}.weight", (width,)), (f"{name}.bias", (width,)))


def block_flops(width: int, tokens: int, length: int) -> tuple[float, float]:
    """FLOPs of attention (four projections, scores, mixing) and of the two layers behind it."""
    attention = 2.0 * tokens * (4 * width * width + 2 * length * width)
    return attention, 2.0 * tokens * 8 * width * width


def bert_large() -> Model:
    """BERT-large on 32 sequences of 128 tokens (with pooler, without the heads of pretraining)."""
    width, blocks, tokens, length, heads = 1024, 24, 32 * 128, 128, 16
    output = 4 * tokens * width
    attention, rest = block_flops(width, tokens, length)
    tables = (("embeddings.word", (30522, width)), ("embeddings.position", (512, width)),
              ("embeddings.type", (2, width)))
    layers = [Layer("embeddings", tables + norm_of("embeddings.norm", width), 0.0, 0.0,
                    output, 2 * output)]
    for i in range(blocks):
        name = f"layer.{i}.attention"
        parts = tuple(t for part in ("query", "key", "value", "output")
                      for t in dense(f"{name}.{part}", width, width))
        layers.append(Layer(name, parts + norm_of(f"{name}.norm", width), attention,
                            2 * attention, output, 25 * tokens * width + 9 * heads * tokens * length))
        name = f"layer.{i}.mlp"
        parts = dense(f"{name}.in", width, 4 * width) + dense(f"{name}.out", 4 * width, width)
        layers.append(Layer(name, parts + norm_of(f"{name}.norm", width), rest, 2 * rest,
                            output, 41 * tokens * width))
    flops = 2.0 * 32 * width * width
    layers.append(Layer("pooler", dense("pooler", width, width), flops, 2 * flops,
                        4 * 32 * width, 2 * 4 * 32 * width))
    return Model("32 sequences of 128 tokens", "arXiv:1810.04805, section 3", 335141888, layers, 32)


def gpt2(width: int, blocks: int, batch: int, parameters: int) -> Model:
    """GPT-2 on sequences of 1024 tokens; the output layer has no tensor of its own."""
    vocabulary, length = 50257, 1024
    tokens = batch * length
    attention, rest = block_flops(width, tokens, length)
    layers = [Layer("embeddings", (("wte", (vocabulary, width)), ("wpe", (length, width))),
                    0.0, 0.0)]
    for i in range(blocks):
        name = f"h.{i}.attn"
        parts = norm_of(f"h.{i}.ln_1", width) + dense(f"{name}.c_attn", width, 3 * width)
        layers.append(Layer(name, parts + dense(f"{name}.c_proj", width, width), attention,
                            2 * attention))
        name = f"h.{i}.mlp"
        parts = norm_of(f"h.{i}.ln_2", width) + dense(f"{name}.c_fc", width, 4 * width)
        layers.append(Layer(name, parts + dense(f"{name}.c_proj", 4 * width, width), rest,
                            2 * rest))
    flops = 2.0 * tokens * width * vocabulary
    layers.append(Layer("ln_f", norm_of("ln_f", width), 0.0, 0.0))
    layers.append(Layer("head", (), flops, 2 * flops))
    return Model(f"{batch} sequences of {length} tokens", "Radford et al. 2019, table 2",
                 parameters, layers)


MODELS: dict[str, Callable[[], Model]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "bert-large": bert_large,
    "gpt2-124m": lambda: gpt2(768, 12, 8, 124439808),
    "gpt2-1.5b": lambda: gpt2(1600, 48, 4, 1557611200),
}


def make(name: str, tflops: float) -> dict[str, Any]:
    """The profile of a model. ValueError: its parameters are not the published number."""
    model = MODELS[name]()
    total = sum(count_of(shape) for layer in model.layers for _, shape in layer.tensors)
    if total != model.parameters:
        raise ValueError(f"{name}: {total} parameters, not {model.parameters}")
    flops = sum(layer.forward + layer.backward for layer in model.layers)
    per_us = tflops * 1e6
    return {
        "format": "msdu-profile-1",
        "name": name,
        "compute": f"{model.compute}; {flops / 1e12:.4g} TFLOP a step at {tflops:g} TFLOP/s",
        "source": f"{model.source}; bench/profiles/make.py --tflops {tflops:g}",
        "dtype": "float32",
        **({"samples": model.samples} if model.samples else {}),
        "layers": [
            {
                "name": layer.name,
                "forward_us": round(layer.forward / per_us, 3),
                "backward_us": round(layer.backward / per_us, 3),
                **({"output_bytes": layer.output, "kept_bytes": layer.kept} if layer.output else {}),
                "tensors": [{"name": tensor, "count": count_of(shape)}
                            for tensor, shape in layer.tensors],
            }
            for layer in model.layers
        ],
    }


def text_of(profile: dict[str, Any]) -> str:
    """JSON with one line for each layer."""
    head = {key: value for key, value in profile.items() if key != "layers"}
    lines = ",\n".join(f"  {json.dumps(layer)}" for layer in profile["layers"])
    return json.dumps(head, indent=1)[:-2] + f',\n "layers": [\n{lines}\n ]\n}}\n'


def main() -> int:
    """Write or compare the files; 1 where one differs."""
    parser = argparse.ArgumentParser(description="Write the model profiles of msdu bench overlap.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent,
                        help="folder (default: that of this script)")
    parser.add_argument("--tflops", type=float, default=TFLOPS,
                        help="sustained rate, Tera-FLOP/s (default %(default)g)")
    parser.add_argument("--check", action="store_true", help="write nothing: are the files so?")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    args = parser.parse_args()
    unknown = [name for name in args.models if name not in MODELS]
    if unknown or not 0 < args.tflops < 1e9:
        parser.error(f"no model {unknown[0]}" if unknown else "--tflops: a rate above 0")
    status = 0
    for name in args.models or MODELS:
        path = args.out / f"{name}.json"
        text = text_of(make(name, args.tflops))
        if not args.check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what make.py writes", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
