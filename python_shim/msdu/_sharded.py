# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters that torch shards: fully_shard (FSDP2), tensor parallelism.

fully_shard reduces a group's gradients over the ranks of a replica in the middle of the backward
pass and then calls the hooks of its sharded parameters, so exchange between replicas overlaps.
"""

from __future__ import annotations

from typing import Any

from torch.autograd import Variable

from . import _dtensor, _tensors
from ._gradients import Gradients


class Sharded(Gradients):
    """Parts of gradients, announced as torch has reduced them inside the replica.

    A module whose forward runs twice before the backward pass is reduced twice, into the same
    memory. So a gradient is first announced at the end of a pass, and when it comes only if it
    never came more than once in a pass.
    """

    def _listen(self) -> list[Any]:
        self._times = bytearray(len(self._slots))  # in this pass
        self._most = bytes(len(self._slots))  # in any pass that was exchanged
        return super()._listen()

    def _begin(self) -> None:
        super()._begin()
        self._times[:] = bytes(len(self._times))

    def _came(self, index: int, slot: _tensors.Slot) -> None:
        self._times[index] = min(self._times[index] + 1, 255)
        if self._most[index] == 1:
            self._announce(index, slot)

    def _announce(self, index: int, slot: _tensors.Slot) -> None:
        if slot.is_part:
            _dtensor.align(slot.param)
        super()._announce(index, slot)

    def _finish_exchange(self) -> None:
        super()._finish_exchange()
        self._most = bytes(map(max, self._most, self._times))

    def _engine_ends(self) -> None:
        """Torch reduces the last gradients in such a callback of its own, perhaps a later one."""
        Variable._execution_engine.queue_callback(self.end)
