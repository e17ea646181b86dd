# SPDX-License-Identifier: Apache-2.0
"""What msdu.attach() costs with one rank: steps with and without it, in turn, medians side by side.

    python bench/attach/attach.py [--steps N] [--threads N] [--cpu] [--json FILE]

One rank exchanges nothing, so whatever the attached step takes longer is the package's own. With
--cpu the clock is the thread's processor time (with --threads 1 that is all of the step), which
other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python_shim"), str(ROOT / "bench")]
import msdu
from training.allocator import keep_memory

LIBRARY = ROOT / "build/lib/libmsdu.so"
if LIBRARY.exists():
    os.environ.setdefault("MSDU_LIBRARY", str(LIBRARY))


def convnet() -> tuple[nn.Module, torch.Tensor]:
    """A residual network of 20 layers for (32, 3, 32, 32) images, 0.27 million parameters."""

    def block(inner: int, outer: int, stride: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
        )  # fmt: skip

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for stage, outer in enumerate((16, 32, 64)):
        for index in range(3):
            layers.append(block(width, outer, 2 if stage and not index else 1))
            width = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)]
    return nn.Sequential(*layers), torch.randn(32, 3, 32, 32)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """Four encoder layers of width 128 over (16, 64, 128) inputs, 0.8 million parameters."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 4), torch.randn(16, 64, 128)


def wide() -> tuple[nn.Module, torch.Tensor]:
    """Three wide layers, 12.6 million parameters on a batch of 8: many bytes for little work."""
    size = 2048
    return nn.Sequential(
        nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size)
    ), torch.randn(8, size)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convnet": convnet,
    "transformer": transformer,
    "wide": wide,
}
DOMAINS: dict[str, dict[str, Any]] = {
    "gradient": {"domain": "gradient"},
    "parameter": {"domain": "parameter", "interval": "fixed", "interval_steps": 8},
}


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, clock: Callable[[], int]
) -> int:
    """One training step; nanoseconds."""
    began = clock()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    return clock() - began


def measure(name: str, domain: str, steps: int, clock: Callable[[], int]) -> dict[str, Any]:
    """Medians of `steps` pairs, the first tenth dropped."""
    torch.manual_seed(0)
    plain, x = MODELS[name]()
    attached, _ = MODELS[name]()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9) for m in (plain, attached)]
    times: list[list[int]] = [[], []]
    with msdu.attach(attached, optimizers[1], ranks=1, **DOMAINS[domain]):
        for number in range(steps):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                model = (plain, attached)[which]
                times[which].append(step(model, optimizers[which], x, clock))
    medians = [statistics.median(t[len(t) // 10 :]) / 1000 for t in times]
    ratios = [b / a for a, b in zip(*times)][steps // 10 :]
    return {
        "model": name,
        "domain": domain,
        "parameters": sum(p.numel() for p in plain.parameters()),
        "tensors": len(list(plain.parameters())),
        "plain_us": round(medians[0], 1),
        "attached_us": round(medians[1], 1),
        "ratio": round(medians[1] / medians[0], 4),
        "pair_ratio": round(statistics.median(ratios), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu", action="store_true", help="processor time of the thread")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    keep_memory()
    torch.set_num_threads(given.threads)
    clock = time.thread_time_ns if given.cpu else time.perf_counter_ns
    print(f"torch {torch.__version__}, {given.threads} threads, {given.steps} pairs of steps")
    print(f"{'model':12} {'domain':10} {'tensors':>7} {'plain us':>10} {'attached us':>11}"
          f" {'ratio':>7} {'of pairs':>8}")  # fmt: skip
    records = []
    for name in MODELS:
        for domain in DOMAINS:
            one = measure(name, domain, given.steps, clock)
            records.append(one)
            print(
                f"{name:12} {domain:10} {one['tensors']:7} {one['plain_us']:10.1f} "
                f"{one['attached_us']:11.1f} {one['ratio']:7.4f} {one['pair_ratio']:8.4f}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
