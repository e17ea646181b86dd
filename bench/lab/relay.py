# SPDX-License-Identifier: Apache-2.0
"""Delay for kernels without netem: a process that carries every frame over the bridge, later.

The ports are isolated, so the bridge forwards nothing between them. What a port receives is read
from a packet socket and sent, delay_ms later, out of the bridge itself, which finds the port of
the destination. Frames keep their order. Each comes with a virtio_net_hdr, so a segment of 64 KiB
stays in one piece and checksums stay with the kernel.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import socket
import time

import network

# <linux/if_ether.h>, <linux/if_packet.h>, <asm-generic/socket.h>
_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 64 << 20
_FRAME_BYTES_MAX = 10 + 14 + (1 << 16)
_READS_AT_ONCE = 64


def _packet_socket(device: str, protocol: int) -> socket.socket:
    """A raw socket of one device that receives frames of a protocol, 0 for none; OSError."""
    # Protocol 0 until it is bound: otherwise it would first receive from every device.
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for force, name in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            packets.setsockopt(socket.SOL_SOCKET, force, _BUFFER_BYTES)
        except PermissionError:  # not the machine's root: as much as it grants
            packets.setsockopt(socket.SOL_SOCKET, name, _BUFFER_BYTES)
    packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    packets.setblocking(False)
    packets.bind((device, protocol))
    return packets


class Relay:
    """Frames on their way, the oldest first."""

    def __init__(self, hosts: int, delay_ms: float) -> None:
        self._delay = delay_ms / 1e3
        self._ports = [_packet_socket(network.port(host), _ETH_P_ALL) for host in range(hosts)]
        self._bridge = _packet_socket("br0", 0)
        self._buffer = bytearray(_FRAME_BYTES_MAX)
        self._waiting: collections.deque[tuple[float, bytearray]] = collections.deque()

    def run(self) -> None:
        """Carry frames until killed."""
        while True:
            self._send_due()
            pause = None
            if self._waiting:
                pause = max(0.0, self._waiting[0][0] - time.monotonic())
            for port in select.select(self._ports, [], [], pause)[0]:
                self._receive(port)

    def _receive(self, port: socket.socket) -> None:
        due = time.monotonic() + self._delay
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS_AT_ONCE):
                count = port.recv_into(self._buffer)
                self._waiting.append((due, self._buffer[:count]))

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            with contextlib.suppress(BlockingIOError):  # lost, as by any full buffer
                self._bridge.send(self._waiting.popleft()[1])


def start(hosts: int, delay_ms: float) -> int:
    """Start the relay in the bridge's namespace and return its process id; OSError."""
    relay = Relay(hosts, delay_ms)  # here, so that no frame is early and errors are the caller's
    child = os.fork()
    if child == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # Ahead of the ranks' computation, where allowed; a late relay would be a longer delay.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            relay.run()
        finally:
            os._exit(1)
    return child
