# SPDX-License-Identifier: Apache-2.0
"""The network of the lab: one namespace per host, a bridge, shaped links, their counters."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernel

INTERFACE = "eth0"
PORT = 29600  # of the rendezvous; each namespace has all ports for itself
HOSTS_MAX = 250
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_ETHERNET = 14  # bytes of an Ethernet header, which tbf counts too
_BURST_S = 0.002
_QUEUE_S = 0.020
_QUEUE_FRAMES_MIN = 64
_QUEUE_BYTES_MAX = 4 << 20


class Unfit(Exception):
    """This machine or user cannot run the lab; the text is one line that says why."""


@dataclass(frozen=True)
class Link:
    """One host's link, equal in both directions; rate None: not shaped."""

    rate_bits: float | None  # per second, Ethernet header to the end of the payload
    burst_bytes: int
    queue_bytes: int
    mtu: int
    delay_ms: float  # one way, from a host to any other
    congestion: str  # TCP's congestion control


@dataclass
class Counts:
    """What went through one host's link, and over its loopback.

    tx and rx are of the queue in front of the interface (tc -s): frames as a wire would carry
    them. interface_ are of the interface itself (/sys/class/net), where a segment of up to 64 KiB
    that the network card would cut up (GSO) counts with one header only. inside_ is what ranks of
    the host sent to each other over TCP, by the same count of headers.
    """

    tx_bytes: int = 0
    rx_bytes: int = 0
    tx_packets: int = 0
    rx_packets: int = 0
    interface_tx_bytes: int = 0
    interface_rx_bytes: int = 0
    dropped_packets: int = 0  # by the two queues of the link, both full
    inside_bytes: int = 0

    def since(self, before: Counts) -> Counts:
        """The difference, field by field."""
        return Counts(
            *(now - then for now, then in zip(vars(self).values(), vars(before).values()))
        )


def parse_rate(text: str) -> float | None:
    """Bits per second of a rate such as 200mbit or 2.5gbit; None for "none"; ValueError."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text.lower())
    if match is None or not 1e5 <= float(match[1]) * _UNITS[match[2]] <= 1e11:
        raise ValueError(f"'{text}' is not a rate; allowed: 100kbit .. 100gbit, or none")
    return float(match[1]) * _UNITS[match[2]]


def default_burst(rate_bits: float, mtu: int) -> int:
    """Bytes that may pass at once: what the rate gives in 2 ms, at least two frames.

    Above, short messages would not see the rate; below, tokens are lost whenever the kernel
    looks after the queue later than that, and the link is slower than it says. From some
    270 Mbit/s on it holds a whole segment of 64 KiB, which tbf then need not cut up.
    """
    return max(2 * (mtu + _ETHERNET), round(rate_bits / 8 * _BURST_S))


def default_queue(rate_bits: float, mtu: int) -> int:
    """Bytes that may wait: 20 ms, at least 64 frames and at most 4 MiB, as in a small switch.

    A queue of seconds would hide every loss and delay all else; one that cannot hold the first
    windows of all senders to one rank loses frames at the start of every round.
    """
    frames = _QUEUE_FRAMES_MIN * (mtu + _ETHERNET)
    return max(frames, min(round(rate_bits / 8 * _QUEUE_S), _QUEUE_BYTES_MAX))


def choose_congestion(wanted: str) -> str:
    """The wanted congestion control, or the kernel's default for "default"; Unfit."""
    folder = Path("/proc/sys/net/ipv4")
    if wanted == "default":
        return (folder / "tcp_congestion_control").read_text().strip()
    available = (folder / "tcp_available_congestion_control").read_text().split()
    if wanted not in available:
        raise Unfit(
            f"congestion control '{wanted}' is not in this kernel, "
            f"which has {' '.join(available)} (--congestion)"
        )
    return wanted


def _call(*words: str, descriptor: int | None = None) -> str:
    """Output of ip or tc, which sees the present network namespace; Unfit with its complaint."""
    keep = () if descriptor is None else (descriptor,)
    done = subprocess.run(words, capture_output=True, text=True, pass_fds=keep, check=False)
    if done.returncode != 0:
        complaint = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise Unfit(f"'{' '.join(words)}' failed: {complaint}")
    return done.stdout


def _up(device: str, *settings: str) -> None:
    """Switch a device on, without the IPv6 address that would start to announce itself.

    In this order: in one call the kernel would switch it on first.
    """
    _call("ip", "link", "set", device, *settings, "addrgenmode", "none")
    _call("ip", "link", "set", device, "up")


def address(host: int) -> str:
    """IPv4 address of a host."""
    return f"10.77.0.{host + 1}"


def port(host: int) -> str:
    """The bridge's end of a host's link."""
    return f"host{host}"


class Network:
    """Namespaces and links, made in the network namespace of this process, which is the bridge's.

    Only descriptors hold the namespaces of the hosts, so they go with this process.
    """

    def __init__(self, links: Sequence[Link], per_host: int) -> None:
        """links: of each host; they may differ in rate, burst and queue."""
        self.links = links
        self.hosts = len(links)
        self.per_host = per_host  # ranks, which number the hosts in turn: 0 and 1, 2 and 3
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._namespaces: list[int] = []
        _call("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        _up("br0", "mtu", str(self.link.mtu))
        for host in range(self.hosts):
            self._add(host)

    @property
    def link(self) -> Link:
        """For what all links have in common."""
        return self.links[0]

    @property
    def rates(self) -> list[float | None]:
        """Of each host's link."""
        return [link.rate_bits for link in self.links]

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.per_host

    def host_of(self, rank: int) -> int:
        """Where a rank runs."""
        return rank // self.per_host

    @contextlib.contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """This process and what it starts are in the host's namespace."""
        kernel.enter_network(self._namespaces[host])
        try:
            yield
        finally:
            kernel.enter_network(self._home)

    def enter(self, rank: int) -> None:
        """Move this process onto the rank's host for good: its links, /sys and name.

        The name is the address, which every other host can resolve without a file of its own.
        """
        host = self.host_of(rank)
        kernel.enter_network(self._namespaces[host])
        kernel.own_mounts()
        kernel.own_host_name(address(host))

    def counts(self) -> list[Counts]:
        """Everything counted since the network was made, by host."""
        return [self._count(host) for host in range(self.hosts)]

    def relayed_frames(self) -> tuple[int, int]:
        """Frames that arrived at the bridge, and those that a relay sent on."""
        arrived = sum(_interface(port(host), "rx_packets") for host in range(self.hosts))
        return arrived, _interface("br0", "tx_packets")

    def _new_namespace(self) -> int:
        kernel.unshare(kernel.CLONE_NEWNET)
        try:
            return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            kernel.enter_network(self._home)

    def _add(self, host: int) -> None:
        end, mtu = port(host), str(self.link.mtu)
        namespace = self._new_namespace()
        self._namespaces.append(namespace)
        _call(
            "ip",
            "link",
            "add",
            end,
            "mtu",
            mtu,
            "type",
            "veth",
            "peer",
            "name",
            f"far{host}",
            "mtu",
            mtu,
        )
        _call(
            "ip",
            "link",
            "set",
            f"far{host}",
            "netns",
            f"/proc/self/fd/{namespace}",
            "name",
            INTERFACE,
            descriptor=namespace,
        )
        _up(end, "master", "br0")
        if self.link.delay_ms > 0:  # then frames pass through the relay and no other way
            _call("ip", "link", "set", end, "type", "bridge_slave", "isolated", "on")
        self._shape(host, end)
        with self.inside(host):
            self._configure(host)

    def _configure(self, host: int) -> None:
        _call("ip", "link", "set", "lo", "up")
        _up(INTERFACE)
        _call("ip", "addr", "add", f"{address(host)}/24", "dev", INTERFACE, "noprefixroute")
        # By route, because a namespace may not choose every one by sysctl.
        _call(
            "ip",
            "route",
            "add",
            "10.77.0.0/24",
            "dev",
            INTERFACE,
            "scope",
            "link",
            "src",
            address(host),
            "congctl",
            self.link.congestion,
        )
        self._shape(host, INTERFACE)

    def _shape(self, host: int, device: str) -> None:
        """A queue at one end; where the link is not shaped, one that only counts."""
        link = self.links[host]
        if link.rate_bits is None:
            _call("tc", "qdisc", "add", "dev", device, "root", "pfifo", "limit", "10000")
            return
        _call(
            "tc",
            "qdisc",
            "add",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            f"{round(link.rate_bits)}bit",
            "burst",
            str(link.burst_bytes),
            "limit",
            str(link.queue_bytes),
        )

    def _count(self, host: int) -> Counts:
        end = port(host)
        # First the interface, which comes after the queue, so that it never counts more. It is
        # read at the bridge's end, where rx is what the host sent.
        tx_bytes, rx_bytes = _interface(end, "rx_bytes"), _interface(end, "tx_bytes")
        down = _queue(end)
        with self.inside(host):
            up = _queue(INTERFACE)
            inside = _loopback_bytes()
        return Counts(
            up["bytes"],
            down["bytes"],
            up["packets"],
            down["packets"],
            tx_bytes,
            rx_bytes,
            up["drops"] + down["drops"],
            inside,
        )


def _interface(device: str, name: str) -> int:
    return int(Path(f"/sys/class/net/{device}/statistics/{name}").read_text())


def _loopback_bytes() -> int:
    """Sent over loopback of the present network namespace, which this /sys does not show."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    line = next(line for line in lines if line.lstrip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def _queue(device: str) -> dict[str, Any]:
    """Statistics of a device's root queue, as tc prints them."""
    text = _call("tc", "-s", "-j", "qdisc", "show", "dev", device)
    root: dict[str, Any] = next(entry for entry in json.loads(text) if entry.get("root"))
    return root
