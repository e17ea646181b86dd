# SPDX-License-Identifier: Apache-2.0
"""Tests run against MSDU_LIBRARY, or the library inside an installed package."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for place in (HERE, HERE.parent):
    sys.path.insert(0, str(place))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)
for name in list(os.environ):  # nothing of the caller's settings
    if name.startswith("MSDU_") and name not in ("MSDU_LIBRARY", "MSDU_MODULE_PATH"):
        del os.environ[name]
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
# What torchrun and others make and leave behind: in a folder of this process, removed at its end.
# Forked ranks inherit the name and leave by os._exit(), so nobody else removes it.
SCRATCH = tempfile.mkdtemp(prefix="msdu_python_tests_")
# after multiprocessing's own folders in it, which go with priority -100
Finalize(None, shutil.rmtree, (SCRATCH, True), exitpriority=-200)
os.environ["TMPDIR"] = tempfile.tempdir = SCRATCH
# torch's Gloo would look up the machine's own name, which need not be known anywhere
os.environ["GLOO_SOCKET_IFNAME"] = "lo"


@pytest.fixture
def on_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of this test have their tensors in the memory of a stand-in for a GPU."""
    import standin
    import torch

    if standin.folder() is None:
        pytest.skip("the stand-in for NCCL and CUDA was not built beside MSDU_LIBRARY")
    if torch.version.cuda is not None:
        pytest.skip(f"torch {torch.__version__} has loaded CUDA's own library before the stand-in")
    for name, value in standin.environment().items():
        monkeypatch.setenv(name, value)
