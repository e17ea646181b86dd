# SPDX-License-Identifier: Apache-2.0
"""Adam's second moments in local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)
_KEPT_KINDS = (torch.optim.Adam, torch.optim.AdamW)
LONGEST = 0.9995  # beta2, unless the caller's own is larger
FLOOR = 0.1  # least kept root, by the mean of its block
BLOCK = 256  # elements, wire_block's default
# Kept second moments: so many steps seem to be done that no correction for few of them is left
# (in float32 both numbers and their sum are exact), and a step adds as good as nothing.
SEEMING_STEPS = float(1 << 23)
KEPT_BETA2 = 1 - 4e-6


def scaled(beta2: float, ranks: int) -> float:
    """beta2 whose memory is ``ranks`` times as long, at most LONGEST; in 0 .. 1."""
    return max(beta2, min(LONGEST, 1 - (1 - beta2) / ranks))


def can_keep(optimizer: torch.optim.Optimizer) -> bool:
    """Adam or AdamW, not in the variant amsgrad, whose largest second moments only grow."""
    return isinstance(optimizer, _KEPT_KINDS) and not any(
        group["amsgrad"] for group in optimizer.param_groups
    )


def raised(second: torch.Tensor) -> torch.Tensor:
    """Second moments none of whose roots is far below the mean root of its block.

    An element that hardly ever had a gradient would be divided by almost nothing for the rest of
    the run.
    """
    if second.numel() == 0:
        return second
    root = second.reshape(-1).sqrt()
    blocks = functional.pad(root, (0, -root.numel() % BLOCK)).view(-1, BLOCK)
    count = torch.full((len(blocks), 1), float(BLOCK), dtype=root.dtype, device=root.device)
    count[-1:] -= blocks.numel() - root.numel()
    least = FLOOR * blocks.sum(-1, keepdim=True) / count
    return blocks.maximum(least).flatten()[: root.numel()].square().view(second.shape)


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
    times, and differ between ranks. So either second moments are led to those of the mean
    gradient (``mean``), or those that the mean gradients before the first local step have left
    are kept (``keep``: 1-bit Adam, arXiv:2102.02888, algorithm 1), or nothing is done (``own``).

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
        ranks: N; 1 until the group is known.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], how: str) -> None:
        self.ranks = 1
        self.how = how
        self._known = [id(one) for one in optimizers if isinstance(one, _KINDS)]
        self._own: list[_Given] = []
        self._steps: dict[int, tuple[dict[Any, Any], float]] = {}  # by id() of a group
        self._seeming: list[torch.Tensor] = []  # numbers of steps that are larger than they were
        # by id() of a parameter, as of its optimizer's first local step: had it a state by then?
        self.kept: dict[int, bool] = {}

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a local step of this optimizer."""
        self.restore()
        if self.ranks == 1 or self.how == "own" or id(optimizer) not in self._known:
            return
        for group in optimizer.param_groups:
            betas = group["betas"]
            if isinstance(betas[1], float):  # a tensor belongs to a captured graph: leave it
                if self.how == "keep":
                    self._keep(optimizer, group["params"], betas[1])
                beta2 = KEPT_BETA2 if self.how == "keep" else scaled(betas[1], self.ranks)
                share = 1 if self.how == "keep" else 1 / self.ranks
                group["betas"] = (betas[0], 1 - (1 - beta2) * share, *betas[2:])
                self._own.append(_Given(group, betas, group["betas"], optimizer.state, beta2))
        if self._seeming:
            torch._foreach_add_(self._seeming, SEEMING_STEPS)

    @torch.no_grad()
    def _keep(
        self, optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor], beta2: float
    ) -> None:
        for param in params:
            state = optimizer.state.get(param)
            if id(param) not in self.kept:
                # without a state it takes the mean of its squares from here on
                self.kept[id(param)] = bool(state)
                if state:
                    second = state["exp_avg_sq"]
                    second.copy_(raised(second / (1 - beta2 ** float(state["step"]))))
            if state and self.kept[id(param)]:
                self._seeming.append(state["step"])

    @torch.no_grad()
    def after(self) -> None:
        """After a local step that came to its end."""
        for given in self._own if self.how == "mean" else ():
            states = [
                given.states[param]
                for param in given.group["params"]
                if param.grad is not None and given.states.get(param)
            ]
            if states:
                second = [state["exp_avg_sq"] for state in states]
                first = [state["exp_avg"] for state in states]
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
        if self._seeming:
            torch._foreach_sub_(self._seeming, SEEMING_STEPS)
            self._seeming.clear()
        for given in self._own:
            if given.group["betas"] is given.ours:  # else somebody has set new ones meanwhile
                given.group["betas"] = given.own
        self._own.clear()
