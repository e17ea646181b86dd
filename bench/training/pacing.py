# SPDX-License-Identifier: Apache-2.0
"""Steps of a model that take as long as on a slower machine, by sleeping, so that cores stay free.

A step of a rank of speed v takes 1 / v of the base time: what computing leaves of it is slept layer
by layer, a third in the forward pass and the rest in the backward pass. So gradients become ready
one after another, as on that machine, and an exchange can hide behind them.
"""
from __future__ import annotations

import pathlib
import sys
import time
from typing import Any

from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import pace

FORWARD_SHARE = 1 / 3
_NEW = 0.1  # weight of the latest step in what computing takes


class Pacing:
    """Sleeps in the layers of a model, between begin() and end() of a step."""

    def __init__(self, model: nn.Module, speed: pace.Speed, base_s: float) -> None:
        self._speed = speed
        self._base_s = base_s
        self._computing = 0.0  # of a step, processor time
        self._owed = 0.0  # to be slept
        self._is_on = False
        layers = [one for one in model.modules() if list(one.parameters(recurse=False))]
        self._layers = len(layers)
        for layer in layers:
            layer.register_forward_pre_hook(self._forward)
            layer.register_full_backward_pre_hook(self._backward)
        self._origin = time.monotonic()

    def start(self) -> None:
        """Bursts begin from now on."""
        self._origin = time.monotonic()

    def begin(self, share: float = 1.0) -> None:
        """A step with this share of the usual samples."""
        speed = self._speed.at(time.monotonic() - self._origin)
        self._left_s = max(0.0, share * (self._base_s / speed) - self._computing)
        self._began = time.thread_time()
        self._is_on = True

    def end(self) -> None:
        """The step's backward pass has ended."""
        self._is_on = False
        spent = time.thread_time() - self._began
        self._computing += (_NEW if self._computing else 1.0) * (spent - self._computing)

    def _forward(self, *_: Any) -> None:
        self._sleep(FORWARD_SHARE)

    def _backward(self, *_: Any) -> None:
        self._sleep(1 - FORWARD_SHARE)

    def _sleep(self, share: float) -> None:
        if not self._is_on:  # evaluations take no longer, nor do copies of the model
            return
        began = time.monotonic()
        self._owed += self._left_s * share / self._layers
        time.sleep(max(0.0, self._owed))
        self._owed -= time.monotonic() - began
