# SPDX-License-Identifier: Apache-2.0
"""A rendezvous of torchrun's agents that restarts no worker for another one's sake
(``torchrun --rdzv-backend=msdu``).

Torch's own rendezvous makes one world of all agents, and stops all workers to make the next one.
Here an agent's world is its own workers, and it is never told of others. The workers find each
other by the library (setting ``ranks_least``), which knows how to go on without one and with a new
one. So all this does is hand the command line down as settings.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

_PORT = 29400  # torch's own default
_ROLE_INFO = "torchelastic/role_info/"


def url_of(endpoint: str) -> str:
    """Setting ``rendezvous`` for what ``--rdzv-endpoint`` says: HOST[:PORT], several of them with
    commas between, or a rendezvous of the library's.

    Raises:
        ValueError: it is empty, and MSDU_RENDEZVOUS is not set.
    """
    endpoint = endpoint.strip()
    if not endpoint:
        url = os.environ.get("MSDU_RENDEZVOUS", "")
        if not url:
            raise ValueError(
                "--rdzv-backend=msdu needs --rdzv-endpoint: HOST:PORT[,HOST:PORT...], "
                "file:///DIR or redis://HOST:PORT"
            )
        return url
    if "://" in endpoint:
        return endpoint
    places = [parse_rendezvous_endpoint(one, _PORT) for one in endpoint.split(",")]
    return "tcp://" + ",".join(f"{host}:{port}" for host, port in places)


class _Store(dist.TCPStore):
    """The agent's, which it tells how many workers it starts."""

    def __init__(self, handler: Handler) -> None:
        super().__init__("localhost", 0, is_master=True, wait_for_workers=False)
        self._handler = handler

    def set(self, key: str, value: Any) -> None:
        if key.startswith(_ROLE_INFO):
            self._handler.tell_workers(json.loads(value)["local_world_size"])
        super().set(key, value)


class Handler(RendezvousHandler):
    """An agent alone. What it tells its workers it tells in its own environment, which they get."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        self._store: Any = None
        own = os.environ
        # each worker is a launch of its own: the first one finds no job, the others find its
        own.update(MSDU_RANKS="1", MSDU_RANK="0", MSDU_RENDEZVOUS=url_of(params.endpoint))
        if params.run_id and params.run_id != "none":
            own.setdefault("MSDU_JOB", params.run_id)
        seconds = params.get_as_int("join_timeout", 600) or 600
        own.setdefault("MSDU_RANKS_WAIT_MS", str(1000 * seconds))
        self._chosen = {
            name: count
            for name, count in (
                ("MSDU_RANKS_LEAST", params.min_nodes),
                ("MSDU_RANKS_MOST", params.max_nodes),
            )
            if name not in own
        }
        self.tell_workers(1)

    def tell_workers(self, count: int) -> None:
        """So many belong to this agent, and to each of the others."""
        for name, nodes in self._chosen.items():
            os.environ[name] = str(nodes * count)

    def get_backend(self) -> str:
        return "msdu"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """At once: nobody else belongs to this world."""
        if self._store is None:
            self._store = _Store(self)
        place = RendezvousStoreInfo("localhost", self._store.port)
        return RendezvousInfo(self._store, 0, 1, place)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        """Never any, or the agent would restart its workers."""
        return 0

    def get_run_id(self) -> str:
        return self._params.run_id

    def shutdown(self) -> bool:
        return True


def handler() -> Any:
    """Entry point ``torchrun.handlers``."""
    return Handler
