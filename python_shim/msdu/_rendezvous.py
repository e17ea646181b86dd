# SPDX-License-Identifier: Apache-2.0
"""Which rank this is and where the ranks meet: torch.distributed, its store, or a launcher."""

from __future__ import annotations

import collections
import datetime
import hashlib
import os
from collections.abc import Mapping
from typing import Any, Optional

import torch.distributed as dist

from . import _abi, _context, _regroup, _store

# Attachments by group and job: its ranks attach in the same order. By rank as well, since ranks may
# be threads of this process (backend local).
_numbers: collections.Counter[tuple[str, str, int]] = collections.Counter()
_servers: list[Any] = []  # stores that this process serves, kept for its peers
_DEADLINE_MS = 60000  # the library's default


def place(
    given: Mapping[str, Any], process_group: Optional[Any] = None
) -> tuple[dict[str, Any], Optional[_store.Store]]:
    """Who we are (settings ``ranks``, ``rank``, ``job``), and the store by which ranks meet.

    In this order: what ``given`` says; torch.distributed, where it is initialized; the launcher's
    variables, which the library reads. Ranks meet where ``rendezvous`` or MSDU_RENDEZVOUS says;
    else rank 0 tells where it listens through torch's store: the default group's, or the one
    at MASTER_ADDR:MASTER_PORT (torchrun's agent, else our own, which a later
    init_process_group() shares).

    Args:
        given: settings of the caller.
        process_group: of torch.distributed; None: the default group, if there is one.
    """
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
    number = _numbers[tag, job, found["rank"]]
    _numbers[tag, job, found["rank"]] += 1
    found["job"] = f"{job}{tag}-{number}" if number or tag else job
    if found["ranks"] == 1 or given.get("rendezvous") or os.environ.get("MSDU_RENDEZVOUS"):
        return found, None
    store = _torchs(found["rank"], given)
    if store is None:
        return found, None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if _regroup.is_wanted(given):
        attempt = "group"  # who comes back looks where the others were
    return found, _store.Store(store, f"{attempt}/", number)


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _group_tag(process_group: Optional[Any]) -> str:
    """Groups that attach at the same time must not take each other's address."""
    if process_group is None:
        return ""
    ranks = dist.get_process_group_ranks(process_group)
    digest = hashlib.blake2s(repr(ranks).encode(), digest_size=6).hexdigest()
    return f"-{digest}"


def members(process_group: Optional[Any]) -> list[int]:
    """Ranks of torch.distributed in a group, if they have other numbers there."""
    if process_group is None:
        return []
    found = list(dist.get_process_group_ranks(process_group))
    return [] if found == list(range(len(found))) else found


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


def _torchs(rank: int, given: Mapping[str, Any]) -> Optional[Any]:
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
