# SPDX-License-Identifier: Apache-2.0
"""Start the ranks of one training run, behind shaped links or as plain processes, and watch them."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

USAGE = 2  # status of bench/lab for a rate that is none
LAB = pathlib.Path(__file__).resolve().parents[2] / "bench" / "lab"

POLL_S = 0.1
GRACE_S = 2.0  # for the other ranks to end by themselves once one has failed
LAST_LINES = 12  # the last five may be the table of bench/lab
FOREIGN_PREFIXES = ("MSDU_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")


class RankFailure(Exception):
    """One or more ranks failed; the text says which and shows their last lines."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank, ranks, port, settings):
    """Ours without any MSDU_* or launcher's variable, so that nothing but `settings` decides."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN_PREFIXES)}
    clean.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    clean.update(settings)
    return clean


def log_path(folder, rank):
    return folder / f"rank-{rank}.log"


def last_lines(folder, rank, count):
    text = log_path(folder, rank).read_text(errors="replace").rstrip()
    return text.splitlines()[-count:]


def start_rank(command, folder, rank, ranks, port, settings):
    with open(log_path(folder, rank), "wb") as log:
        return subprocess.Popen(
            command,
            env=environment(rank, ranks, port, settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def stop(processes):
    """End what still runs, first politely; only processes that we started."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ending(code):
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def failure(processes, folder):
    """Text about every failed rank, after a moment in which the others may fail as well."""
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(p.poll() is None for p in processes):
        time.sleep(POLL_S)
    lines = []
    for rank, process in enumerate(processes):
        code = process.poll()
        if code:
            lines.append(f"rank {rank} {ending(code)}; its last lines:")
            lines += [f"    {line}" for line in last_lines(folder, rank, LAST_LINES)]
    return RankFailure("\n".join(lines))


def watch(processes, folder, limit_s, show):
    began = time.monotonic()
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            raise failure(processes, folder)
        if time.monotonic() - began > limit_s:
            raise RankFailure(f"the ranks did not end within {limit_s} s; logs are in {folder}")
        show(last_lines(folder, 0, 1))
        time.sleep(POLL_S)
    if any(process.poll() for process in processes):
        raise failure(processes, folder)


def lab(ranks, rate, command):
    """`command` as ranks of bench/lab, on hosts of their own behind links of this rate."""
    return [sys.executable, "-B", str(LAB), "--ranks", str(ranks), "--rate", rate, "--", *command]


def why_no_lab(rate):
    """What bench/lab says where it cannot run; empty where it can. Raises RankFailure."""
    tried = subprocess.run(
        lab(2, rate, ["true"]), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    reason = (tried.stderr or tried.stdout).strip()
    if tried.returncode == USAGE:
        raise RankFailure(reason)
    return reason if tried.returncode else ""


def run_ranks(command, folder, ranks, rate, settings, limit_s, show):
    """
    Run `command` once per rank, in bench/lab at this rate or (None) over loopback, with `settings` in its environment; output goes to rank-N.log in
    folder, rank 0's latest line to show(). Raises RankFailure. Leaves no process behind.
    """
    port = free_port()
    processes = []
    starts = 1 if rate else ranks  # the lab starts the others
    command = lab(ranks, rate, command) if rate else command
    try:
        for rank in range(starts):
            processes.append(start_rank(command, folder, rank, ranks, port, settings))
        watch(processes, folder, limit_s, show)
    finally:
        stop(processes)
