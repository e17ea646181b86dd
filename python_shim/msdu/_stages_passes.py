# SPDX-License-Identifier: Apache-2.0
"""How long a layer's passes take where a share of the processor is taken away in pauses.

A quota of a container lets a process run at full speed until it is used up, and then stand still
until its period ends: 100 ms in Docker and Kubernetes. Most short passes see nothing of that, so
a median says nothing of it. What counts is the mean over whole periods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Callable

_CALM_S = 0.15  # a quota's pause comes within a period
_PAUSED_S = 0.75  # some periods
_ALL_S = 30.0  # for all layers of a model
_LEAST = 4  # passes, of which the first does not count
_PAUSE_S = 1e-3  # a pass that takes so much longer than twice the fastest saw a pause

Pass = tuple[float, float]  # seconds forward and backward


def repeated(once: Callable[[], Pass], layers: int) -> Pass:
    """Passes of a layer, again and again: for 0.15 s, and for 0.75 s where there are pauses; in a
    model of more than 40 layers for less, so that all of them take some 30 s. At least four passes.

    Args:
        once: takes a forward and a backward pass.
        layers: of the model.

    Returns:
        A pass, as :func:`mean` has it.
    """
    most = min(_PAUSED_S, _ALL_S / layers)
    until = min(_CALM_S, most)
    passes = [once()]
    begin = time.perf_counter()
    while True:
        passes.append(once())
        spent = time.perf_counter() - begin
        if spent < until or len(passes) < _LEAST:
            continue
        if until == most or not _paused(passes[1:]):
            return mean(passes[1:], spent)
        until = most


def mean(passes: Sequence[Pass], spent_s: float) -> Pass:
    """Of a pass, over whole periods of a quota: from the end of the first pause to the end of the
    last. A single pause in a time that would have had several is an accident, and left out.
    Where few passes saw a pause, medians say how the mean is divided into forward and backward."""
    paused = _paused(passes)
    if len(paused) > 2:
        counted = list(passes[paused[0] + 1 : paused[-1] + 1])
    elif len(paused) == 1 and spent_s >= _CALM_S and len(passes) > 1:
        counted = [one for i, one in enumerate(passes) if i != paused[0]]
    else:
        counted = list(passes)
    whole = statistics.fmean(map(sum, counted))
    of = statistics.median if 0 < 4 * len(paused) < len(passes) else statistics.fmean
    forward, backward = (of([one[i] for one in counted]) for i in (0, 1))
    share = forward / (forward + backward) if forward + backward > 0 else 1.0
    return whole * share, whole * (1 - share)


def _paused(passes: Sequence[Pass]) -> list[int]:
    """Which passes saw a pause."""
    least = min(map(sum, passes))
    return [i for i, one in enumerate(passes) if sum(one) > 2 * least + _PAUSE_S]
