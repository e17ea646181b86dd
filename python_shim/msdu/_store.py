# SPDX-License-Identifier: Apache-2.0
"""A store of torch.distributed, handed down to the library as a table of functions (store.h).

The library calls them from msdu_start(), on the thread that called it. ctypes gave the
interpreter's lock away for that call and takes it back for each of these, so other threads run on;
torch gives it away again while it waits.
"""

from __future__ import annotations

import ctypes
import datetime
import time
from typing import Any, Callable, Optional

from . import _abi


class Store:
    """What the library calls.

    Args:
        store: of torch.distributed, reached by all ranks.
        prefix: of every key.
        epoch: which group of this name it is.

    Attributes:
        table: msdu_store; its functions live as long as this object.
        interrupt: what was raised in a function and is no failure of the store, such as Ctrl-C.
    """

    def __init__(self, store: Any, prefix: str, epoch: int) -> None:
        self._store = store
        self._prefix = prefix
        self.interrupt: Optional[BaseException] = None
        self.table = _abi.StoreTable(
            size=ctypes.sizeof(_abi.StoreTable),
            epoch=epoch,
            set=_abi.STORE_SET_FN(self._set),
            get=_abi.STORE_GET_FN(self._get),
        )

    def _set(self, _user: Any, key: bytes, value: int, size: int, timeout_ns: int, why: int) -> int:
        def work() -> int:
            self._store.set(self._prefix + key.decode(), ctypes.string_at(value, size))
            return 0

        return self._guarded(work, timeout_ns, why)

    def _get(self, _user: Any, key: bytes, value: int, size: Any, timeout_ns: int, why: int) -> int:
        def work() -> int:
            name = self._prefix + key.decode()
            self._store.wait([name], datetime.timedelta(microseconds=timeout_ns // 1000))
            found = bytes(self._store.get(name))
            if len(found) > size[0]:
                raise ValueError(f"{len(found)} bytes, expected at most {size[0]}")
            ctypes.memmove(value, found, len(found))
            size[0] = len(found)
            return 0

        return self._guarded(work, timeout_ns, why)

    def _guarded(self, work: Callable[[], int], timeout_ns: int, why: int) -> int:
        """No exception may leave a function that C calls. Stores raise the same for a key that is
        not there in time and for a broken connection: the clock tells which it was."""
        start = time.monotonic_ns()
        try:
            return work()
        except Exception as problem:
            lines = str(problem).splitlines() or [type(problem).__name__]
            text = lines[0].encode(errors="replace")[: _abi.STORE_WHY_BYTES - 1] + b"\0"
            ctypes.memmove(why, text, len(text))
            is_late = time.monotonic_ns() - start >= timeout_ns * 9 // 10
            return _abi.ERR_TIMEOUT if is_late else _abi.ERR_IO
        except BaseException as problem:  # noqa: BLE001 - raised again by Context.start()
            self.interrupt = problem
            return _abi.ERR_IO
