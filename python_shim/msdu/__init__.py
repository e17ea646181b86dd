# SPDX-License-Identifier: Apache-2.0
"""msdu: data-parallel training over slow networks, attached to PyTorch in one line.

``import msdu`` needs neither torch nor the library; :func:`attach` needs both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._abi import Error, version
from ._settings import Setting, settings

if TYPE_CHECKING:
    from ._attach import Attachment, attach, summary
    from ._batches import batches
    from ._pipeline import Pipeline, pipeline
    from ._summary import Row, Summary, plot
    from .ddp import DistributedDataParallel, HookState, comm_hook

__all__ = [
    "Attachment",
    "DistributedDataParallel",
    "Error",
    "HookState",
    "Pipeline",
    "Row",
    "Setting",
    "Summary",
    "attach",
    "batches",
    "comm_hook",
    "pipeline",
    "plot",
    "settings",
    "summary",
    "version",
]
__version__ = "0.3.0"

# Names that need torch, and where they are.
_LATER = {
    "Attachment": "_attach",
    "DistributedDataParallel": "ddp",
    "HookState": "ddp",
    "Pipeline": "_pipeline",
    "attach": "_attach",
    "batches": "_batches",
    "comm_hook": "ddp",
    "pipeline": "_pipeline",
    "summary": "_attach",
    "Row": "_summary",
    "Summary": "_summary",
    "plot": "_summary",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'msdu' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
