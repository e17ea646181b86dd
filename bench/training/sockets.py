# SPDX-License-Identifier: Apache-2.0
"""Bytes that this rank has sent, as the kernel counts them; needs no privilege.

TCP's counters work for every method alike, whichever library owns the connections. What a
connection sent that has been closed since is lost; collective libraries keep theirs open. Where a
rank has an interface of its own (bench/lab), that interface's counter has the headers as well.
"""
from __future__ import annotations

import os
import socket
import struct

BYTES_SENT = 200  # offset of tcpi_bytes_sent in struct tcp_info (linux/tcp.h, since Linux 4.19)


def _sent(fd: int) -> int:
    """Bytes sent over one file descriptor, 0 if it is no TCP connection."""
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return 0
        with socket.socket(fileno=os.dup(fd)) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT + 8)
    except OSError:
        return 0
    return int(struct.unpack_from("=Q", info, BYTES_SENT)[0]) if len(info) >= BYTES_SENT + 8 else 0


def bytes_sent() -> int:
    """Payload bytes, retransmissions included, of all open TCP connections of this process."""
    return sum(_sent(int(name)) for name in os.listdir("/proc/self/fd"))


def interface_bytes_sent() -> int | None:
    """Bytes sent by the interface that gloo uses; None where other ranks use it too (loopback)."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    with open("/proc/net/dev", encoding="ascii") as file:
        counters = dict(line.split(":", 1) for line in file if ":" in line)
    for interface, text in counters.items():
        if interface.strip() == name and name != "lo":
            return int(text.split()[8])  # the ninth column: bytes transmitted
    return None
