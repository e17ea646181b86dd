# SPDX-License-Identifier: Apache-2.0
"""Scripts that reduce gradients themselves, by ``torch.distributed.all_reduce``.

The first step is the script's own: it is learned which gradients it reduces, how, and when. From
then on the means come from the library, or after local steps the script gets its own gradients
back, as a sum or an average of equal ones. Whatever is not such a gradient passes untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from . import _device, _dtensor, _tensors
from ._gradients import Gradients

logger = logging.getLogger("msdu")
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_SCALED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "as it is": lambda grad, _: grad,
    "divided": lambda grad, ranks: grad / ranks,
    "multiplied": lambda grad, ranks: grad * (1.0 / ranks),
}  # what scripts do to a gradient before they sum it


class Held(Gradients):
    """Gradients that are taken from ``.grad`` when the script reduces the first of them."""

    can_be_thin = False

    def _listen(self) -> list[Any]:
        return []


class Done:
    """In the place of the handle of an asynchronous all_reduce that is over."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self, timeout: Any = None) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It was."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensor that was reduced."""
        return [self._tensor]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that is set."""
        future: torch.futures.Future[list[torch.Tensor]] = _device.future_of(self._tensor)
        future.set_result([self._tensor])
        return future


@dataclass
class _Seen:
    """How the script reduced gradients in its first step."""

    op: Any
    is_inside: bool  # of a backward pass: others are not final yet
    is_altered: bool  # changed between the step's first reduction and its own
    is_again: bool  # reduced before in this step


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN equals NaN here, so that ranks judge alike."""
    kind = _BITS.get(one.element_size())
    if kind is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


def scale_of(grad: torch.Tensor, given: torch.Tensor, ranks: int) -> Optional[str]:
    """What was done to a gradient to get ``given``; None: something else."""
    for name, scaled in _SCALED.items():
        if same_bits(scaled(grad.detach(), ranks), given.detach()):
            return name
    return None


class Reductions:
    """Recognizes gradients in calls of all_reduce.

    Args:
        candidates: gives the optimizers whose parameters no DistributedDataParallel has.
        attach: makes an attachment of optimizers, in the parameter domain only if so said, over a
            process group (None: the default one).
        say: one line for the user.
    """

    def __init__(
        self,
        candidates: Callable[[], Sequence[torch.optim.Optimizer]],
        attach: Callable[[Sequence[torch.optim.Optimizer], bool, Any], Any],
        say: Callable[[str], None],
    ) -> None:
        self._candidates = candidates
        self._attach = attach
        self._say = say
        self.attachment: Any = None
        self._original: Any = None
        self._is_out = False
        self._seen: dict[int, _Seen] = {}
        self._groups: list[Any] = []  # over which, of torch.distributed
        self._before: dict[int, torch.Tensor] = {}  # gradients at the step's first reduction
        self._stepped: set[int] = set()
        self._flat = ""  # how the script scales a flat copy of all gradients
        self._places: dict[int, torch.Tensor] = {}  # parameters, by address of their gradient
        self._next: dict[int, torch.Tensor] = {}  # what came after a parameter, the last time
        self._last: Optional[torch.Tensor] = None
        self._params: list[torch.Tensor] = []
        self._count = 0  # elements of all gradients
        self._sizes: set[int] = set()
        self._given: set[int] = set()  # handed back in this step

    def saw_optimizer(self) -> None:
        """There are more parameters now."""
        if self.attachment is None:
            self._params = []

    # --- a call of the script ---

    def reduce(self, original: Any, tensor: Any, op: Any, group: Any, async_op: bool) -> Any:
        """torch.distributed.all_reduce, where the tensor may be a gradient."""
        self._original = original
        params = None if self._is_out else self._recognize(tensor, group)
        if self.attachment is None:
            if params is not None:
                self._learn(params, tensor, op, _named(group))
            return original(tensor, op, group, async_op)
        if params is None or self.attachment.is_over or op not in _OPS:
            return original(tensor, op, group, async_op)
        self._give(params, tensor, op)
        return Done(tensor) if async_op else None

    def _recognize(self, tensor: Any, group: Any) -> Optional[list[torch.Tensor]]:
        """Parameters whose gradients this is; None: something else."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        group = _named(group)
        if group is not None and dist.get_rank(group) < 0:
            return None  # torch does nothing then
        if self.attachment is not None and group is not self._groups[0]:
            return None
        if self._params and tensor.numel() not in self._sizes and tensor.numel() != self._count:
            return None
        param = self._at(tensor)
        if param is None:
            self._look_around()
            param = self._at(tensor)
        if param is not None:
            if self._last is not None:
                self._next[id(self._last)] = param
            self._last = param
            return [param]
        return self._params if self._is_flat(tensor, dist.get_world_size(group)) else None

    def _at(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """The parameter whose gradient lies there, as far as is known."""
        guess = None if self._last is None else self._next.get(id(self._last))
        for param in (guess, self._places.get(tensor.data_ptr())):
            grad = None if param is None else param.grad
            if grad is not None and grad.data_ptr() == tensor.data_ptr():
                is_whole = grad.numel() == tensor.numel() and grad.dtype == tensor.dtype
                return param if is_whole else None
        return None

    def _look_around(self) -> None:
        """Where the gradients are now."""
        made = self.attachment.optimizers if self.attachment is not None else self._candidates()
        self._params = [p for p in _owned(made) if p.requires_grad and not _dtensor.is_part(p)]
        with_grad = [p for p in self._params if p.grad is not None]
        self._places = {p.grad.data_ptr(): p for p in with_grad if p.grad is not None}
        self._sizes = {p.numel() for p in self._params}
        self._count = sum(p.numel() for p in self._params)

    # --- the first step ---

    def _learn(
        self, params: Sequence[torch.Tensor], tensor: torch.Tensor, op: Any, group: Any
    ) -> None:
        if self._stepped and any(id(param) in self._seen for param in params):
            self._decide()  # a second step begins before all optimizers ended the first
            return
        if not self._seen:
            self._before = {id(p): p.grad.clone() for p in self._params if p.grad is not None}
        if not any(group is known for known in self._groups):
            self._groups.append(group)
        is_inside = torch._C._current_graph_task_id() != -1
        for param in params:
            known, grad = self._before.get(id(param)), param.grad
            is_altered = known is None or grad is None
            if known is not None and grad is not None:
                is_altered = scale_of(known, grad, dist.get_world_size(group)) is None
            self._seen[id(param)] = _Seen(op, is_inside, is_altered, id(param) in self._seen)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step is over."""
        self._given.clear()
        if self.attachment is not None or self._is_out or not self._seen:
            return
        self._stepped.add(id(optimizer))
        owners = self._owners()
        if all(id(one) in self._stepped for one in owners):
            self._decide()

    def _owners(self) -> list[torch.optim.Optimizer]:
        """Optimizers some of whose gradients the script reduced."""
        return [
            one for one in self._candidates() if any(id(p) in self._seen for p in _owned([one]))
        ]

    def _decide(self) -> None:
        """What all ranks do from here on; a clipped gradient may look different on each."""
        owners = self._owners()
        reason = self._why_not(owners)
        self._before.clear()
        is_free = any(one.is_inside or one.is_altered for one in self._seen.values())
        found = torch.tensor([bool(reason), is_free], dtype=torch.int32)
        found = found.to(self._params[0].device)
        for group in self._groups:  # of several, all ranks of each have this reason to stay out
            self._original(found, dist.ReduceOp.MAX, group)
        is_out, is_free = (bool(one) for one in found.tolist())
        if is_out:
            reason = reason or "another rank has a reason"
            self._say(f"not attached, gradients are reduced as the script does it: {reason}")
        else:
            self.attachment = self._attach(owners, is_free, self._groups[0])
        self._is_out = self.attachment is None
        if not self._is_out:
            self._look_around()

    def _why_not(self, owners: Sequence[torch.optim.Optimizer]) -> str:
        left = [p for p in _owned(owners) if p.grad is not None and id(p) not in self._seen]
        if not owners:
            return "their optimizer is gone"
        if len(self._groups) > 1:
            return f"over {len(self._groups)} process groups in one step"
        if any(_dtensor.is_part(p) for p in _owned(owners)):
            return "some parameters of their optimizer are sharded"
        if left:
            return f"{len(left)} of the optimizer's gradients are not among them"
        if any(one.op not in _OPS for one in self._seen.values()):
            return "by another operation than a sum or an average"
        if any(one.is_again for one in self._seen.values()):
            return "more than once in a step"
        if any(p.grad is not None and p.grad.layout is not torch.strided for p in _owned(owners)):
            return "some are sparse"
        return ""

    # --- all further steps ---

    def _give(self, params: Sequence[torch.Tensor], tensor: torch.Tensor, op: Any) -> None:
        """Make the tensor what all_reduce would: the sum or average of the library's means, or of
        as many copies of this rank's own gradient."""
        if not self._given or any(id(p) in self._given for p in params):
            self._given.clear()
            self.attachment.reduce_now()
        self._given.update(id(p) for p in params)
        with torch.no_grad():
            if params is self._params:
                self._fill(params, tensor)
            if op == dist.ReduceOp.SUM:
                tensor.mul_(self.attachment.ranks)

    def _fill(self, params: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Means into a flat copy, scaled as the script did it."""
        at = 0
        for param in params:
            assert param.grad is not None
            scaled = _SCALED[self._flat](param.grad, self.attachment.ranks)
            flat[at : at + param.numel()].copy_(scaled.reshape(-1))
            at += param.numel()

    def _is_flat(self, tensor: torch.Tensor, ranks: int) -> bool:
        """All gradients in one flat copy, in the optimizers' order, bit for bit."""
        if tensor.dim() != 1 or tensor.numel() != self._count or not self._params:
            return False
        if any(p.grad is None or p.grad.dtype != tensor.dtype for p in self._params):
            return False
        flat = torch.cat([p.grad.reshape(-1) for p in self._params if p.grad is not None])
        how = scale_of(flat, tensor, ranks)
        if how is None or (self.attachment is not None and how != self._flat):
            return False
        self._flat = how
        return True


_OPS = tuple(
    getattr(dist.ReduceOp, name) for name in ("SUM", "AVG") if hasattr(dist.ReduceOp, name)
)


def _named(group: Any) -> Any:
    """The default group by its shorter name."""
    return None if group is dist.group.WORLD else group


def _owned(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Their parameters, each once."""
    found = {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}
    return [p for p in found.values() if p.dtype in _tensors.DTYPES]
