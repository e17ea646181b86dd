# SPDX-License-Identifier: Apache-2.0
"""A callback for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import gc
import logging
from typing import Any, Optional

import torch
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from transformers import TrainerCallback

from .. import _regroup, _tensors
from ..ddp import HookState, comm_hook

logger = logging.getLogger("msdu")


class MsduCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """``Trainer(..., callbacks=[MsduCallback(interval="fixed", interval_steps=8)])``

    The Trainer wraps the model in DistributedDataParallel as always; at the beginning of training
    this registers the communication hook there. All ranks are made equal before an evaluation or a
    checkpoint and at the end. With one process it does nothing.

    DistributedDataParallel sends one small message a step of its own where it looks for unused
    parameters: ``TrainingArguments(ddp_find_unused_parameters=False)`` saves it.

    Args:
        buffers: ``"average"``: floating point buffers are averaged with the parameters;
            ``"local"``: each rank keeps its own.
        settings: of the library, as for :func:`msdu.attach`.

    Attributes:
        state: the attachment while training: summary(), progress(). None before.
    """

    def __init__(self, *, buffers: str = "average", **settings: Any) -> None:
        self.state: Optional[HookState] = None
        self._buffers = buffers
        self._settings = settings

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Attach.

        Raises:
            msdu.Error: several processes, but no DistributedDataParallel around the model; or as
                :func:`msdu.attach`.
        """
        _regroup.refuse(self._settings, "this Trainer")  # its world is one where agents have none
        if args.world_size == 1:
            return
        wrapped = _wrapper_of(model)
        optimizer = _inner(kwargs["optimizer"])
        self.state = HookState(wrapped, optimizer, buffers=self._buffers, **self._settings)
        wrapped.register_comm_hook(self.state, comm_hook)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Equal ranks before an evaluation or a checkpoint, which all ranks decide alike."""
        if self.state is not None and (control.should_evaluate or control.should_save):
            self.state.synchronize()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Equal ranks at the end, and a summary in the log of rank 0."""
        if self.state is None:
            return
        self.state.finish()
        if state.is_world_process_zero:
            logger.info("%s", self.state.summary())
        self.state.close()


def _wrapper_of(model: torch.nn.Module) -> TorchDDP:
    """The Trainer tells its callbacks the model, not what it wrapped around it."""
    for one in gc.get_objects():
        if issubclass(type(one), TorchDDP) and one.__dict__["_modules"].get("module") is model:
            return one  # type: ignore[no-any-return,unused-ignore]
    raise _tensors.invalid(
        "this Trainer has not wrapped its model in DistributedDataParallel; FSDP, DeepSpeed and "
        "tensor parallelism are not supported"
    )


def _inner(optimizer: Any) -> torch.optim.Optimizer:
    """Accelerate wraps the optimizer."""
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
