# SPDX-License-Identifier: Apache-2.0
"""torch's engine for pipelines of any order. The only file that uses names that torch keeps to
itself: the class ``_PipelineScheduleRuntime``, its ``_load_csv``, where it failed, and the store
of the default group."""

from __future__ import annotations

import csv
import inspect
import os
import re
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from . import _abi

try:
    from torch.distributed import pipelining

    Stage: Any = pipelining.PipelineStage
except ImportError:  # runtime() says so
    Stage = object

_NEEDS = "msdu.pipeline() needs torch.distributed.pipelining with orders of its own (torch 2.13)"


def runtime() -> Any:
    """The class that runs an order.

    Raises:
        msdu.Error: MSDU_ERR_UNSUPPORTED, this torch has none that we know.
    """
    try:
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime as found

        loads = inspect.signature(found._load_csv).parameters
        steps = inspect.signature(found.step).parameters
        if not {"filename", "format"} <= set(loads) or "return_outputs" not in steps:
            raise ImportError("its parameters are others")
    except (ImportError, AttributeError, TypeError) as problem:
        text = f"{_NEEDS}; this is {torch.__version__}: {problem}"
        raise _abi.Error(_abi.ERR_UNSUPPORTED, text) from problem
    return found


def engine(
    stages: Sequence[Any],
    micro_batches: int,
    loss: Callable[..., torch.Tensor],
    rows: Sequence[Sequence[str]],
    has_messages: bool,
) -> Any:
    """A schedule whose ``step()`` runs a row's actions.

    Args:
        stages: of this rank, each a torch.distributed.pipelining.PipelineStage.
        micro_batches: of a step.
        loss: of a micro-batch; gradients are not scaled.
        rows: actions by rank of the stages' group.
        has_messages: rows have sends and receives; else torch places them.
    """
    made = runtime()(list(stages), micro_batches, loss_fn=loss, scale_grads=False)
    handle, path = tempfile.mkstemp(suffix=".csv")
    try:
        with os.fdopen(handle, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        made._load_csv(path, format="compute_comms" if has_messages else "compute_only")
    finally:
        os.unlink(path)
    return made


def store(prefix: str) -> Any:
    """The store of torch.distributed's default group, for keys that begin so."""
    found = torch.distributed.distributed_c10d._get_default_store()
    return torch.distributed.PrefixStore(prefix, found)  # type: ignore[attr-defined]


def failed_at(problem: BaseException) -> Optional[tuple[int, str]]:
    """Stage and kind ("F", "RECV_B", ...) of the action that the engine was at, if it was at one;
    "F" and "B" wait for their message first."""
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        action = frame.f_locals.get("action")
        found = re.fullmatch(r"(\d+)([A-Z_]+)\d+", str(action))
        if found is not None and hasattr(action, "computation_type"):
            return int(found[1]), found[2]
    return None
