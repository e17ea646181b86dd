# SPDX-License-Identifier: Apache-2.0
"""Entry for CTest: run.py FILE... ; exit 77 (skipped) with a reason where torch cannot be had."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLDEST = (2, 1)  # register_post_accumulate_grad_hook()


def main() -> int:
    sys.dont_write_bytecode = True
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    try:
        import pytest
        import torch
    except ImportError as problem:
        print(f"skipped: {problem}; scripts/setup.sh test installs it where it can be had")
        return 77
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST:
        print(f"skipped: torch {torch.__version__} is older than 2.1")
        return 77
    files = [str(HERE / name) for name in sys.argv[1:]]
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--durations=3", "-rs"]
    code = pytest.main([*options, *files])
    return 77 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    raise SystemExit(main())
