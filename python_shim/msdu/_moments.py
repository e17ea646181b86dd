# SPDX-License-Identifier: Apache-2.0
"""Adam's second moments in local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from . import _dtensor

_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
LONGEST = 0.9995  # beta2, unless the caller's own is larger


def scaled(beta2: float, ranks: float) -> float:
    """beta2 whose memory is ``ranks`` times as long, at most LONGEST; in 0 .. 1."""
    return max(beta2, min(LONGEST, 1 - (1 - beta2) / ranks))


class _Given(NamedTuple):
    """A group whose beta2 is ours for a step."""

    group: dict[str, Any]
    own: Any  # the caller's betas
    ours: Any
    states: dict[Any, Any]  # of its optimizer
    beta2: float  # what second moments are to have, with the step


class SecondMoments:
    """What Adam's second moments do in local steps.

    A rank squares the gradient of its own samples, an N-th of those of N ranks: noise that the
    mean gradient does not have. Steps divided by their root are too small, up to the root of N
    times, and differ between ranks. So second moments are corrected towards those of the mean
    gradient (``mean``), or left alone (``own``).

    ``mean``: with signal s and noise n the own square is s^2 + n^2, the mean gradient's s^2 +
    n^2 / N; the first moment m stands for s. So with b the caller's beta2, its memory N times as
    long because a rank sees an N-th of the samples,

        v = b v + (1 - b) (g^2 / N + c (1 - 1 / N) m^2)

    and for the correction for few steps, v / c, c = 1 - beta2^t with a beta2 of 1 - (1 - b) / N,
    which is what the optimizer adds g^2 with. So v / c is the mean of own squares at first and
    falls to the mean gradient's over N / (1 - b) steps, as c comes to 1: little of a gradient is
    noise in a run's beginning, and second moments of few steps are not fit to take longer steps by.

    The optimizer's groups hold the caller's beta2 whenever no step is under way, and its state the
    true number of steps, so checkpoints and schedulers see nothing of it. Measured in
    ``bench/results/train/table.md``.

    Attributes:
        ranks: N; 1 until the group is known. Where the ranks of a host average their gradients in
            local steps as well, as many times fewer.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], how: str) -> None:
        self.ranks: float = 1
        self.how = how
        self._known = [id(one) for one in optimizers if isinstance(one, _KINDS)]
        self._own: list[_Given] = []
        self._steps: dict[int, tuple[dict[Any, Any], float]] = {}  # by id() of a group

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a local step of this optimizer."""
        self.restore()
        if self.ranks == 1 or self.how == "own" or id(optimizer) not in self._known:
            return
        for group in optimizer.param_groups:
            betas = group["betas"]
            if isinstance(betas[1], float):  # a tensor belongs to a captured graph: leave it
                beta2 = scaled(betas[1], self.ranks)
                group["betas"] = (betas[0], 1 - (1 - beta2) * (1 / self.ranks), *betas[2:])
                self._own.append(_Given(group, betas, group["betas"], optimizer.state, beta2))

    @torch.no_grad()
    def after(self) -> None:
        """After a local step that came to its end."""
        for given in self._own:
            states = [
                given.states[param]
                for param in given.group["params"]
                if param.grad is not None and given.states.get(param)
            ]
            if states:
                second = [_dtensor.local(state["exp_avg_sq"]) for state in states]
                first = [_dtensor.local(state["exp_avg"]) for state in states]
                torch._foreach_mul_(second, given.beta2 / given.ours[1])
                signal = (1 - given.beta2) * (1 - 1 / self.ranks)
                signal *= 1 - given.ours[1] ** self._steps_of(given, states[0])
                torch._foreach_addcmul_(second, first, first, signal)
        self.restore()

    def _steps_of(self, given: _Given, state: dict[str, Any]) -> float:
        """Steps that were done, read once: the optimizer's own number may be on a device."""
        states, steps = self._steps.get(id(given.group), (None, 0.0))
        steps = steps + 1 if states is given.states else float(state["step"])
        self._steps[id(given.group)] = given.states, steps  # others after load_state_dict()
        return steps

    def restore(self) -> None:
        """After the step, or before anything else if it failed."""
        for given in self._own:
            if given.group["betas"] is given.ours:  # else somebody has set new ones meanwhile
                given.group["betas"] = given.own
        self._own.clear()
