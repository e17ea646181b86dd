# SPDX-License-Identifier: Apache-2.0
"""left_behind.py COMMAND...: run a test, which must leave nothing in the temporary folder.

The test has a temporary folder of its own. Its exit status is passed on, or 1 for a test that passed
and left something there. Torch's cache of compiled code stays by intention, so it has its own place.
Open MPI's mpirun may leave files of its own where a rank was killed: those are not ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MPI_OWN = ("ompi.", "pmix-", "prte.")  # of mpirun's processes, by release


def main() -> int:
    """The exit status."""
    with tempfile.TemporaryDirectory(prefix="msdu-") as scratch:
        folder = Path(scratch, "tmp")
        folder.mkdir()
        places = {"TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(Path(scratch, "cache"))}
        status = subprocess.run(sys.argv[1:], env={**os.environ, **places}, check=False).returncode
        names = (str(one.relative_to(folder)) for one in folder.rglob("*"))
        left = sorted(name for name in names if not name.startswith(MPI_OWN))
    for name in left:
        print(f"left behind: {name}")
    return status or int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
