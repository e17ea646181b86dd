# SPDX-License-Identifier: Apache-2.0
"""Which rank this is and where the ranks meet: torch.distributed, its store, or a launcher."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import os
import random
import socket
from collections.abc import Mapping
from typing import Any, Optional

import torch.distributed as dist

from . import _abi, _context

_numbers = itertools.count()  # of attachments: every rank attaches in the same order
_held: list[socket.socket] = []  # ports that were told and that the library may not have bound yet
_servers: list[Any] = []  # stores that this process serves, kept for its peers
_DEADLINE_MS = 60000  # the library's default


def place(given: Mapping[str, Any], process_group: Optional[Any] = None) -> dict[str, Any]:
    """Settings that say who we are and where to meet: ``ranks``, ``rank``, ``job``, ``rendezvous``.

    In this order: what ``given`` says; torch.distributed, where it is initialized; the launcher's
    variables, which the library reads. Ranks meet where ``rendezvous`` or MSDU_RENDEZVOUS says;
    else rank 0 picks a port and tells it through torch's store: the default group's, or the one
    at MASTER_ADDR:MASTER_PORT (torchrun's agent, else our own, which a later
    init_process_group() shares).

    Args:
        given: settings of the caller.
        process_group: of torch.distributed; None: the default group, if there is one.
    """
    number = next(_numbers)
    found: dict[str, Any] = {}
    tag = ""
    if process_group is not None or ("ranks" not in given and _is_initialized()):
        found["rank"] = dist.get_rank(process_group)
        found["ranks"] = dist.get_world_size(process_group)
        tag = _group_tag(process_group)
        if found["rank"] < 0:
            raise _abi.Error(_abi.ERR_INVALID, "this process is not in the process group")
    elif "ranks" in given:
        found["rank"] = int(given.get("rank", 0))
        found["ranks"] = int(given["ranks"])
    else:
        found["rank"], found["ranks"] = _from_launcher(given)
    job = str(given.get("job", "msdu"))
    found["job"] = f"{job}{tag}-{number}" if number or tag else job
    if found["ranks"] > 1 and not given.get("rendezvous") and not os.environ.get("MSDU_RENDEZVOUS"):
        store = _store(found["rank"], given)
        if store is not None:
            found["rendezvous"] = _exchange(store, found, given)
    return found


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _group_tag(process_group: Optional[Any]) -> str:
    """Groups that attach at the same time must not take each other's address."""
    if process_group is None:
        return ""
    ranks = dist.get_process_group_ranks(process_group)
    digest = hashlib.blake2s(repr(ranks).encode(), digest_size=6).hexdigest()
    return f"-{digest}"


def _from_launcher(given: Mapping[str, Any]) -> tuple[int, int]:
    """Rank and size as the library reads them, by a context that is never started."""
    probe = _context.Context({k: given[k] for k in ("backend", "config_file") if k in given}, True)
    try:
        summary = probe.summary()
        return summary.rank, summary.ranks
    finally:
        probe.destroy()


def _timeout(given: Mapping[str, Any]) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=int(given.get("deadline_ms") or _DEADLINE_MS))


def _store(rank: int, given: Mapping[str, Any]) -> Optional[Any]:
    """A store that all ranks can reach; None: leave it to the library."""
    if _is_initialized():
        return dist.distributed_c10d._get_default_store()
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port or not dist.is_available():
        return None
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = rank == 0 and not is_agents
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            int(port),
            is_master=serves,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=_timeout(given),
        )
    except (RuntimeError, ValueError) as problem:
        raise _abi.Error(
            _abi.ERR_TIMEOUT, f"no store at MASTER_ADDR:MASTER_PORT {host}:{port}: {problem}"
        ) from problem
    if serves:
        _servers.append(store)
    return store


def _exchange(store: Any, found: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Rank 0 publishes its address; the others read it."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"msdu/{attempt}/{found['job']}"
    if found["rank"] == 0:
        address = f"tcp://{_own_host(given)}:{_free_port()}"
        store.set(key, address)
        return address
    try:
        store.wait([key], _timeout(given))
        return str(store.get(key).decode())
    except RuntimeError as problem:
        raise _abi.Error(
            _abi.ERR_TIMEOUT,
            f"rank {found['rank']}: rank 0 did not attach (no address under {key!r} in torch's "
            f"store): {str(problem).splitlines()[0]}",
        ) from problem


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _own_host(given: Mapping[str, Any]) -> str:
    """How the others reach this process.

    MASTER_ADDR is by torch's rule the host of global rank 0; a rank 0 of a smaller group may be
    elsewhere and then takes the address that its packets to the master would carry.
    """
    master = os.environ.get("MASTER_ADDR")
    is_first = not _is_initialized() or dist.get_rank() == 0
    if master and is_first and not given.get("interface"):
        return _bracket(master)
    return _bracket(_outward(master or "192.0.2.1"))  # RFC 5737: an address nobody has


def _outward(host: str) -> str:
    """Own address on the way to a host; nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _free_port() -> int:
    """A port that nobody listens on, kept from others until :func:`let_go`.

    It is bound here, but not listened on: the library may bind it too, as both sockets allow it
    (SO_REUSEADDR), and nobody else gets it from the kernel or finds it free. Below those that
    outgoing connections take, where a system knows no such sockets.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError):
        low = 32768
    choice = random.SystemRandom()
    for _ in range(64):
        port = choice.randrange(10000, low) if low > 11000 else 0
        probe = socket.socket()
        try:
            probe.bind(("", port))  # exclusive: another that is kept like this does not allow it
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(probe)
        return int(probe.getsockname()[1])
    raise _abi.Error(_abi.ERR_NOT_FOUND, "no free port for the rendezvous")


def let_go() -> None:
    """The library has bound the port, or never will."""
    while _held:
        _held.pop().close()
