# SPDX-License-Identifier: Apache-2.0
"""Adam's second moments in local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
LONGEST = 0.9995  # beta2, unless the caller's own is larger


def scaled(beta2: float, ranks: int) -> float:
    """beta2 whose memory is ``ranks`` times as long, at most LONGEST; in 0 .. 1."""
    return max(beta2, min(LONGEST, 1 - (1 - beta2) / ranks))


class SecondMoments:
    """Gives optimizers with ``betas`` a longer memory for single steps, and takes it back.

    In a local step a rank squares the gradient of its own samples, an N-th of those of N ranks, so
    an estimate of the same quality needs N times as many steps: 1 - beta2 is divided by N. The
    optimizer's groups hold the caller's beta2 whenever no step is under way, so checkpoints and
    schedulers see nothing of it. Measured in ``bench/results/train/table.md``.

    Attributes:
        ranks: N; 1 until the group is known.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.ranks = 1
        self._known = [id(one) for one in optimizers if isinstance(one, _KINDS)]
        self._own: list[tuple[dict[str, Any], Any, Any]] = []  # group, its betas, what they became

    def lengthen(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a local step of this optimizer."""
        self.restore()
        if id(optimizer) not in self._known:
            return
        for group in optimizer.param_groups:
            before = group["betas"]
            if isinstance(before[1], float):  # a tensor belongs to a captured graph: leave it
                group["betas"] = (before[0], scaled(before[1], self.ranks), *before[2:])
                self._own.append((group, before, group["betas"]))

    def restore(self) -> None:
        """After the step, or before anything else if it failed."""
        for group, before, given in self._own:
            if group["betas"] is given:  # else somebody has set new ones meanwhile
                group["betas"] = before
        self._own.clear()
