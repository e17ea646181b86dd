# SPDX-License-Identifier: Apache-2.0
"""Tests run against MSDU_LIBRARY, or the library inside an installed package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
# torch's Gloo would look up the machine's own name, which need not be known anywhere
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
