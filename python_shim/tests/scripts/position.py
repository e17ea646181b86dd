# SPDX-License-Identifier: Apache-2.0
"""What scripts of ranks that come and go keep."""

from __future__ import annotations


class Position:
    """Where the loop is in its data."""

    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batches = state["batches"]
