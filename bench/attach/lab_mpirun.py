# SPDX-License-Identifier: Apache-2.0
"""Open MPI's mpirun over the hosts of the laboratory, one rank on each.

    sudo python3 bench/lab --ranks 4 -- python3 bench/attach/lab_mpirun.py FOLDER mpirun ARGUMENTS...

Runs on every host: on that of rank 0 it starts mpirun, which would reach the others by ssh. In its
place it is given this file, which leaves the command in FOLDER, an empty one, for the host that it
is meant for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PAUSE_S = 0.05
END = "end"  # mpirun ended
# of the laboratory, for programs that it starts itself
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
            "MASTER_PORT", "MSDU_RENDEZVOUS", "MSDU_INTERFACE")  # fmt: skip


def address(interface: str) -> str:
    """IPv4 address of this host."""
    listed = subprocess.run(
        ["ip", "-json", "-4", "addr", "show", interface],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return str(json.loads(listed)[0]["addr_info"][0]["local"])


def put(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.rename(path)


def take(path: Path) -> str | None:
    """Its text, once it is there; None if mpirun ended before."""
    while not path.exists():
        if path.with_name(END).exists():
            return None
        time.sleep(PAUSE_S)
    return path.read_text()


def agent(folder: Path, words: list[str]) -> int:
    """As ssh: options, a host, a command; returns the command's status."""
    while words[0].startswith("-"):
        words = words[1:]
    put(folder / f"{words[0]}.command", " ".join(words[1:]))
    return int(take(folder / f"{words[0]}.status") or 1)


def lead(folder: Path, ranks: int, interface: str, command: list[str]) -> int:
    """On rank 0's host: mpirun, over all hosts, by TCP on the laboratory's links."""
    hosts = [take(folder / f"address.{rank}") for rank in range(ranks)]
    network = {
        "plm_rsh_agent": f"{sys.executable} {Path(__file__).resolve()} --agent {folder}",
        "plm_rsh_no_tree_spawn": "1",
        "mpi_yield_when_idle": "1",  # all hosts share this machine's cores
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": interface,
        "oob_tcp_if_include": interface,
    }
    words = [word for name, value in network.items() for word in ("--mca", name, value)]
    where = ["-n", str(ranks), "-H", ",".join(str(host) for host in hosts)]
    done = subprocess.run(
        [command[0], *where, "--leave-session-attached", *words, *command[1:]], check=False
    )
    put(folder / END, "")
    return done.returncode


def follow(folder: Path, host: str) -> int:
    """On another host: what mpirun wants to be run there."""
    command = take(folder / f"{host}.command")
    if command is None:
        return 1
    status = subprocess.run(["sh", "-c", command], check=False).returncode
    put(folder / f"{host}.status", str(status))
    return status


def main() -> int:
    """A host's part, or ssh's."""
    if sys.argv[1] == "--agent":
        return agent(Path(sys.argv[2]), sys.argv[3:])
    folder, command = Path(sys.argv[1]).resolve(), sys.argv[2:]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    interface = os.environ["MSDU_INTERFACE"]
    for name in LAUNCHER:
        os.environ.pop(name, None)
    # the hosts share a file system, and their daemons would a folder
    own = folder / f"tmp.{rank}"
    own.mkdir()
    os.environ["TMPDIR"] = str(own)
    host = address(interface)
    put(folder / f"address.{rank}", host)
    return lead(folder, ranks, interface, command) if rank == 0 else follow(folder, host)


if __name__ == "__main__":
    sys.exit(main())
