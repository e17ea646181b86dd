# SPDX-License-Identifier: Apache-2.0
"""What a lab run is reported as: table, JSON, live line. Text only, no processes of the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from job import Job
from network import Counts, Link


def rate_text(rate_bits: float | None) -> str:
    """A rate as --rate takes it."""
    if rate_bits is None:
        return "none"
    for unit, bits in (("gbit", 1e9), ("mbit", 1e6)):
        if rate_bits >= bits:
            return f"{rate_bits / bits:g}{unit}"
    return f"{rate_bits / 1e3:g}kbit"


def _commit() -> str:
    """The commit of the project this file belongs to, or nothing."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def whole_record(link: Link, ranks: int, command: Sequence[str]) -> dict[str, Any]:
    """What holds for all runs; `runs` is filled by run_record()."""
    return {
        "command": list(command),
        "ranks": ranks,
        "rate": rate_text(link.rate_bits),
        "rate_bits": link.rate_bits,
        "delay_ms": link.delay_ms,
        "burst_bytes": link.burst_bytes,
        "queue_bytes": link.queue_bytes,
        "mtu": link.mtu,
        "congestion": link.congestion,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "commit": _commit(),
        "runs": [],
    }


def run_record(job: Job, counts: Sequence[Counts]) -> dict[str, Any]:
    """One run: seconds of the slowest rank, status, and one record per rank."""
    ranks = [
        {
            "rank": rank.rank,
            "exit_status": rank.status,
            "seconds": round(rank.seconds, 3),
            "cpu_seconds": round(rank.cpu_seconds, 3),
            **vars(count),
        }
        for rank, count in zip(job.ranks, counts)
    ]
    return {
        "exit_status": job.status,
        "seconds": round(max(rank.seconds for rank in job.ranks), 3),
        "per_rank": ranks,
    }


def relay_record(job: Job, before: tuple[int, int], after: tuple[int, int]) -> dict[str, Any]:
    """What the relay carried and cost; lost frames include those on their way at the end."""
    arrived, sent = (now - then for now, then in zip(after, before))
    return {
        "frames": sent,
        "lost_frames": arrived - sent,
        "cpu_seconds": round(job.helper_cpu_seconds, 3),
    }


def check_place(path: str) -> None:
    """OSError now if write_json() could not write there after the run."""
    Path(f"{path}.part").touch()
    Path(f"{path}.part").unlink()


def write_json(path: str, whole: dict[str, Any]) -> None:
    """Replace the file as a whole, so that a reader or a crash never sees a part; OSError."""
    part = f"{path}.part"
    Path(part).write_text(json.dumps(whole, indent=1) + "\n")
    os.replace(part, path)


def _share(count_bytes: int, seconds: float, rate_bits: float | None) -> str:
    if rate_bits is None or seconds <= 0:
        return "-"
    return f"{count_bytes * 8 / seconds / rate_bits:.3f}"


def headline(link: Link, ranks: int) -> str:
    """One line about the network."""
    shape = (
        "not shaped"
        if link.rate_bits is None
        else (
            f"{rate_text(link.rate_bits)} each way (burst {link.burst_bytes}, "
            f"queue {link.queue_bytes} bytes)"
        )
    )
    return (
        f"# lab: {ranks} ranks, links {shape}, delay {link.delay_ms:g} ms, "
        f"mtu {link.mtu}, {link.congestion}"
    )


def table(run: dict[str, Any], rate_bits: float | None) -> str:
    """One line per rank; MB are 10^6 bytes, share is of the link's rate over the rank's time."""
    lines = [
        f"{'rank':>4} {'status':>6} {'seconds':>9} {'sent MB':>11} {'received MB':>11} "
        + f"{'sent share':>10} {'recv share':>10} {'dropped':>7}"
    ]
    for rank in run["per_rank"]:
        tx, rx = rank["tx_bytes"], rank["rx_bytes"]
        lines.append(
            f"{rank['rank']:>4} {rank['exit_status']:>6} {rank['seconds']:>9.3f} "
            f"{tx / 1e6:>11.3f} {rx / 1e6:>11.3f} {_share(tx, rank['seconds'], rate_bits):>10} "
            f"{_share(rx, rank['seconds'], rate_bits):>10} {rank['dropped_packets']:>7}"
        )
    if "relay" in run:
        relay = run["relay"]
        lines.append(
            f"# relay: {relay['frames']} frames, {relay['lost_frames']} lost, "
            f"{relay['cpu_seconds']:.3f} s of processor time"
        )
    return "\n".join(lines)


def live(at: float, seconds: float, used: Sequence[Counts], link: Link) -> str:
    """What each link carried in the last seconds, sent and received, in Mbit/s or of the rate."""
    unit = (link.rate_bits or 1e6) / 8 * seconds
    name = "Mbit/s" if link.rate_bits is None else "of rate"
    cells = (f"{count.tx_bytes / unit:.2f}/{count.rx_bytes / unit:.2f}" for count in used)
    return f"# {at:6.1f} s, sent/received {name}: {'  '.join(cells)}"
