# SPDX-License-Identifier: Apache-2.0
"""A strategy for Lightning's Trainer."""

from __future__ import annotations

import logging
from typing import Any, Optional

try:
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError:  # the package under its other name
    from pytorch_lightning.strategies import DDPStrategy  # type: ignore[assignment,unused-ignore]
    from pytorch_lightning.trainer.states import (  # type: ignore[assignment,unused-ignore]
        TrainerFn,
    )

from .. import _regroup, _settings
from ..ddp import HookState, comm_hook

logger = logging.getLogger("msdu")


class MsduStrategy(DDPStrategy):  # type: ignore[misc,unused-ignore]
    """``Trainer(strategy=MsduStrategy(interval="fixed", interval_steps=8))``

    Lightning's DDP strategy with the communication hook on its model. All ranks are made equal
    before a validation or a checkpoint and at the end.

    Args:
        buffers: ``"average"``: floating point buffers are averaged with the parameters;
            ``"local"``: each rank keeps its own.
        settings: of the library, as for :func:`msdu.attach`, and what DDPStrategy takes.

    Attributes:
        state: the attachment while fitting: summary(), progress(). None before.
    """

    strategy_name = "msdu"

    def __init__(self, *args: Any, buffers: str = "average", **settings: Any) -> None:
        known = _settings.settings()
        self._wanted = {name: settings.pop(name) for name in list(settings) if name in known}
        self._buffers = buffers
        self.state: Optional[HookState] = None
        super().__init__(*args, **settings)

    def setup(self, trainer: Any) -> None:
        """Lightning's setup, then the hook."""
        _regroup.refuse(self._wanted, "Lightning's Trainer")
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING or self.world_size == 1:
            return
        optimizers = [getattr(one, "optimizer", one) for one in self.optimizers]
        model: Any = self.model
        self.state = HookState(model, optimizers, buffers=self._buffers, **self._wanted)
        model.register_comm_hook(self.state, comm_hook)

    def on_validation_start(self) -> None:
        """Equal ranks; the check before training has nothing to average."""
        super().on_validation_start()
        module: Any = self.lightning_module
        if not module.trainer.sanity_checking:
            self._synchronize()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """For a checkpoint, which all ranks come to at the same step."""
        self._synchronize()
        return dict(super().lightning_module_state_dict())

    def on_train_end(self) -> None:
        """Equal ranks at the end, and a summary in the log of rank 0."""
        if self._is_training():
            assert self.state is not None
            self.state.finish()
            if self.is_global_zero:
                logger.info("%s", self.state.summary())
        super().on_train_end()

    def teardown(self) -> None:
        """Leave the group: after an error the other ranks lose us, and say so."""
        if self.state is not None:
            self.state.close()
        super().teardown()

    def _is_training(self) -> bool:
        return self.state is not None and not self.state.is_over

    def _synchronize(self) -> None:
        if self._is_training():
            assert self.state is not None
            self.state.synchronize()
