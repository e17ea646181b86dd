# SPDX-License-Identifier: Apache-2.0
"""A rank of the lab's test: one TCP stream to the next rank while one comes from the previous.

lab_stream.py SECONDS PORT: prints one line of JSON: rank, bytes sent, bytes received and
the seconds from before the first byte could have been sent to the end of the stream.
With SECONDS 0 it measures a round trip instead: "rtt_s", the smallest of 20, from rank 0 to 1.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time


def connect(address: str, port: int) -> socket.socket:
    """Connect to a rank that may not listen yet; OSError after some 30 s."""
    for _ in range(600):
        try:
            return socket.create_connection((address, port), timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise OSError(f"nobody listens at {address}:{port}")


def send(address: str, port: int, seconds: float, result: dict[str, float]) -> None:
    """Fill the stream for a while once the receiver has said that its clock runs."""
    block = bytes(1 << 16)
    sent = 0
    with connect(address, port) as stream:
        stream.recv(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(block)
            sent += len(block)
    result["sent"] = sent


def receive(listener: socket.socket, result: dict[str, float]) -> None:
    """Count a stream. The clock starts before its first byte can leave the sender."""
    stream, _ = listener.accept()
    block = bytearray(1 << 18)
    received = 0
    with stream:
        begin = time.monotonic()
        stream.sendall(b"x")
        while True:
            count = stream.recv_into(block)
            if count == 0:
                break
            received += count
        result.update(received=received, seconds=time.monotonic() - begin)


def ping(rank: int, listener: socket.socket, address: str, port: int) -> None:
    """Rank 1 answers each byte of rank 0, which takes the time."""
    if rank == 1:
        stream, _ = listener.accept()
        with stream:
            while stream.recv(1):
                stream.sendall(b"x")
    if rank == 0:
        times = []
        with connect(address, port) as stream:
            for _ in range(20):
                begin = time.monotonic()
                stream.sendall(b"x")
                stream.recv(1)
                times.append(time.monotonic() - begin)
        print(json.dumps({"rank": 0, "rtt_s": min(times)}))


def main() -> None:
    """Take part as the rank that the environment names."""
    seconds, port = float(sys.argv[1]), int(sys.argv[2])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    base = os.environ["MASTER_ADDR"].rpartition(".")[0]
    own, following = f"{base}.{rank + 1}", f"{base}.{(rank + 1) % ranks + 1}"
    with socket.create_server((own, port)) as listener:
        if seconds == 0:
            ping(rank, listener, following, port)
            return
        result: dict[str, float] = {"rank": rank}
        sender = threading.Thread(target=send, args=(following, port, seconds, result))
        sender.start()
        receive(listener, result)
        sender.join()
        print(json.dumps(result))


main()
