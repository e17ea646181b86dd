#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `msdu run` adds to a reduction that it passes through, over all that was built.

passthrough.py --build DIR [--json FILE] [--smoke]: Open MPI, MPICH, and a STAND-IN for NCCL, whose
calls cost nothing like NCCL's own, but what is added is the same code. A table on standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

MPI_RUN = {
    "openmpi": ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", "2"],
    "mpich": ["mpirun.mpich", "-n", "1"],  # it communicates for empty reductions, too
}


def commands(build: Path) -> list[list[str]]:
    """One for each program that is there, with what starts its ranks."""
    found = []
    run = [str(build / "bin/msdu"), "run", "--"]
    for family, start in MPI_RUN.items():
        program = build / f"bin/passthrough_{family}"
        if program.exists() and shutil.which(start[0]):
            found.append([*start, *run, str(program)])
    program = build / "bin/passthrough_nccl_standin"
    if program.exists():
        found.append([*run, str(program)])
    return found


def commit() -> str:
    """Of the sources beside this file."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def processor() -> str:
    """As the system calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def measure(command: list[str], build: Path, is_smoke: bool) -> list[dict[str, object]]:
    """Records of one program, with how it was started."""
    clean = {name: value for name, value in os.environ.items() if "MSDU" not in name}
    clean["MSDU_LOG"] = "error"
    clean["MSDU_MODULE_PATH"] = str(build / ("test/standin" if "nccl" in command[-1] else "lib"))
    done = subprocess.run(
        [*command, *(["--smoke"] if is_smoke else [])],
        stdout=subprocess.PIPE,
        text=True,
        env=clean,
        check=True,
    )
    records: list[dict[str, object]] = json.loads(done.stdout)
    told = " ".join(word.replace(str(build), "build") for word in command)
    return [
        {**one, "command": told, "commit": commit(), "processor": processor()} for one in records
    ]


def main() -> int:
    """Run all; 77: nothing was built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    records = []
    for command in commands(options.build.resolve()):
        records += measure(command, options.build.resolve(), options.smoke)
    if not records:
        print("skipped: no program to measure was built")
        return 77
    print(f"{'over':10} {'ranks':>5} {'case':16} {'plain ns':>10} {'added ns':>10} {'p10':>8} {'p90':>8}")
    for one in records:
        print(
            f"{one['over']:10} {one['ranks']:5} {one['case']:16} {one['plain_ns']:10.1f} {one['added_ns']:10.1f}"
            f" {one['added_p10_ns']:8.1f} {one['added_p90_ns']:8.1f}"
        )
    if options.json:
        options.json.write_text(
            "[\n" + ",\n".join(json.dumps(one) for one in records) + "\n]\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
