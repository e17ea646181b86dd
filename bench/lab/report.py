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
from network import Counts, Network


def rate_text(rate_bits: float | None) -> str:
    """A rate as --rate takes it."""
    if rate_bits is None:
        return "none"
    for unit, bits in (("gbit", 1e9), ("mbit", 1e6)):
        if rate_bits >= bits:
            return f"{rate_bits / bits:g}{unit}"
    return f"{rate_bits / 1e3:g}kbit"


def _common(values: Sequence[Any]) -> Any:
    """The value of all hosts, or one for each where they differ."""
    return values[0] if all(value == values[0] for value in values) else list(values)


def rates_text(rates: Sequence[float | None]) -> str:
    """The rates of all links as --rate takes them: one, or one for each host."""
    common = _common([rate_text(rate) for rate in rates])
    return common if isinstance(common, str) else ",".join(common)


def _commit() -> str:
    """The commit of the project this file belongs to, or nothing."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with contextlib.suppress(OSError):
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def whole_record(net: Network, speeds: dict[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """What holds for all runs; `runs` is filled by run_record()."""
    link = net.link
    return {
        "command": list(command),
        "ranks": net.ranks,
        "hosts": net.hosts,
        **speeds,
        "rate": rates_text(net.rates),
        "rate_bits": _common(net.rates),
        "delay_ms": link.delay_ms,
        "burst_bytes": _common([one.burst_bytes for one in net.links]),
        "queue_bytes": _common([one.queue_bytes for one in net.links]),
        "mtu": link.mtu,
        "congestion": link.congestion,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "commit": _commit(),
        "runs": [],
    }


def run_record(net: Network, job: Job, counts: Sequence[Counts]) -> dict[str, Any]:
    """One run: seconds of the slowest rank, status, and one record per rank and per host."""
    ranks = [
        {
            "rank": rank.rank,
            "host": net.host_of(rank.rank),
            "exit_status": rank.status,
            "seconds": round(rank.seconds, 3),
            "cpu_seconds": round(rank.cpu_seconds, 3),
            **(vars(counts[rank.rank]) if net.per_host == 1 else {}),
        }
        for rank in job.ranks
    ]
    return {
        "exit_status": job.status,
        "seconds": round(max(rank.seconds for rank in job.ranks), 3),
        "per_rank": ranks,
        "per_host": [{"host": host, **vars(count)} for host, count in enumerate(counts)],
    }


def relay_record(job: Job, before: tuple[int, int], after: tuple[int, int]) -> dict[str, Any]:
    """What the relay carried and cost; lost frames include those on their way at the end."""
    arrived, sent = (now - then for now, then in zip(after, before))
    return {
        "frames": sent,
        "lost_frames": arrived - sent,
        "cpu_seconds": round(job.helper_cpu_seconds["relay"], 3),
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


def headline(net: Network) -> str:
    """One line about the network."""
    link = net.link
    bursts = _common([one.burst_bytes for one in net.links])
    queues = _common([one.queue_bytes for one in net.links])
    shape = (
        "not shaped"
        if all(rate is None for rate in net.rates)
        else (
            f"{rates_text(net.rates)} each way (burst {bursts}, queue {queues} bytes)"
        )
    )
    where = f" on {net.hosts} hosts" if net.per_host > 1 else ""
    return (
        f"# lab: {net.ranks} ranks{where}, links {shape}, delay {link.delay_ms:g} ms, "
        f"mtu {link.mtu}, {link.congestion}"
    )


_LINK_HEAD = (
    f"{'sent MB':>11} {'received MB':>11} {'sent share':>10} {'recv share':>10} {'dropped':>7}"
)


def _link_cells(count: dict[str, Any], seconds: float, rate_bits: float | None) -> str:
    tx, rx = count["tx_bytes"], count["rx_bytes"]
    return (
        f"{tx / 1e6:>11.3f} {rx / 1e6:>11.3f} {_share(tx, seconds, rate_bits):>10} "
        f"{_share(rx, seconds, rate_bits):>10} {count['dropped_packets']:>7}"
    )


def _host_lines(run: dict[str, Any], rates: Sequence[float | None]) -> list[str]:
    """What each host sent to others, and what its ranks sent to each other."""
    lines = [f"{'host':>4} {_LINK_HEAD} {'inside MB':>11} {'inside/sent':>11}"]
    for count in run["per_host"]:
        inside, tx = count["inside_bytes"], count["tx_bytes"]
        ratio = f"{inside / tx:.2f}" if tx else "-"
        cells = _link_cells(count, run["seconds"], rates[count["host"]])
        lines.append(f"{count['host']:>4} {cells} {inside / 1e6:>11.3f} {ratio:>11}")
    return lines


def table(run: dict[str, Any], rates: Sequence[float | None]) -> str:
    """One line per rank; MB are 10^6 bytes, share is of the link's rate over the rank's time.

    Where ranks share a link, it has a line of its own.
    """
    is_shared = len(run["per_rank"]) > len(run["per_host"])
    lines = [f"{'rank':>4} {'status':>6} {'seconds':>9} {'host' if is_shared else _LINK_HEAD}"]
    for rank in run["per_rank"]:
        start = f"{rank['rank']:>4} {rank['exit_status']:>6} {rank['seconds']:>9.3f} "
        cells = _link_cells(rank, rank["seconds"], rates[rank["host"]]) if not is_shared else ""
        lines.append(start + (cells or f"{rank['host']:>4}"))
    lines += _host_lines(run, rates) if is_shared else []
    if "relay" in run:
        relay = run["relay"]
        lines.append(
            f"# relay: {relay['frames']} frames, {relay['lost_frames']} lost, "
            f"{relay['cpu_seconds']:.3f} s of processor time"
        )
    return "\n".join(lines)


def live(at: float, seconds: float, used: Sequence[Counts], rates: Sequence[float | None]) -> str:
    """What each link carried in the last seconds, sent and received, of its rate; in Mbit/s if one
    has none."""
    is_shaped = None not in rates
    units = [((rate or 1e6) if is_shaped else 1e6) / 8 * seconds for rate in rates]
    name = "of rate" if is_shaped else "Mbit/s"
    cells = (f"{count.tx_bytes / unit:.2f}/{count.rx_bytes / unit:.2f}"
             for count, unit in zip(used, units))
    return f"# {at:6.1f} s, sent/received {name}: {'  '.join(cells)}"
