# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters that torch shards: fully_shard (FSDP2), tensor parallelism.

fully_shard reduces a group's gradients over the ranks of a replica in the middle of the backward
pass and then calls the hooks of its sharded parameters, so exchange between replicas overlaps.
"""

from __future__ import annotations

from torch.autograd import Variable

from . import _dtensor, _tensors
from ._gradients import Gradients


class Sharded(Gradients):
    """Parts of gradients, announced as torch has reduced them inside the replica."""

    def _announce(self, index: int, slot: _tensors.Slot) -> None:
        if slot.is_part:
            _dtensor.align(slot.param)
        super()._announce(index, slot)

    def _engine_ends(self) -> None:
        """Torch reduces the last gradients in such a callback of its own, perhaps a later one."""
        Variable._execution_engine.queue_callback(self.end)
