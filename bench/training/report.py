# SPDX-License-Identifier: Apache-2.0
"""Tables of the comparison."""
from __future__ import annotations

import pathlib

from .record import Record


def write(records: list[Record], out: pathlib.Path) -> None:
    """Later."""
    del records, out
