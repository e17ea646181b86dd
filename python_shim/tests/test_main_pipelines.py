# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu`` and scripts that use torch's own pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest
from forks import EXACT, attached, launch, plain, values

pytest.importorskip("torch.distributed.pipelining")


@pytest.mark.parametrize(("words", "count"), [([], 2), (["ddp"], 4)], ids=["alone", "ddp"])
def test_they_run_as_without_it(tmp_path: Path, words: list[str], count: int) -> None:
    expected = values(launch(count, plain("torch_pipeline.py", *words), tmp_path / "plain"))
    outcomes = launch(count, attached(EXACT, "torch_pipeline.py", *words), tmp_path / "msdu")
    assert values(outcomes) == expected
    said = outcomes[0].output
    assert ("nothing was attached" in said) == (not words)
