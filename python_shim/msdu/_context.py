# SPDX-License-Identifier: Apache-2.0
"""One msdu_ctx: calls that raise instead of returning a status; no torch."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NoReturn, Optional

from . import _abi, _settings, _store

logger = logging.getLogger("msdu")
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}


_NAMES = {1: "error", 2: "warn", 3: "info", 4: "debug"}
_told: set[str] = set()  # variables that were complained about; "*": all


def _is_again(text: str) -> bool:
    """Was this variable complained about before, by another context?"""
    _, is_unknown, rest = text.partition("unknown variable ")
    if not is_unknown:
        return False
    name = rest.split()[0]
    is_again = name in _told or "*" in _told
    _told.add(name)
    return is_again


def tell_no_unknown_variables() -> None:
    """Another rank does it."""
    _told.add("*")


def _write_log(_user: Any, level: int, raw: bytes) -> None:
    text = raw.decode(errors="replace")
    if _is_again(text):
        return
    if os.environ.get("MSDU_LOG"):  # which asks for lines on standard error: one write for each
        os.write(2, f"msdu {_NAMES.get(level, '?')}: {text}\n".encode())
    else:
        logger.log(_LEVELS.get(level, logging.WARNING), "%s", text)


def _write_unknown(user: Any, level: int, raw: bytes) -> None:
    """Of a context that is only asked something: the variables that no setting has."""
    if b"unknown variable" in raw:
        _write_log(user, level, raw)


# These live as long as the process: the library's threads call them.
_LOG = _abi.LOG_FN(_write_log)
_PROBE_LOG = _abi.LOG_FN(_write_unknown)


def _log_level() -> int:
    """What the logger ``msdu`` lets through, as an msdu_log_level."""
    effective = logger.getEffectiveLevel()
    passed = [level for level, name in _LEVELS.items() if name >= effective]
    return max(passed, default=1)


# Contexts of this process. A forked child (a data loader's worker) has the memory of a context but
# not its threads, and its sockets are the parent's: it must never touch one.
_live: weakref.WeakSet[Context] = weakref.WeakSet()


def _disown_all() -> None:
    for context in list(_live):
        context.disown()


os.register_at_fork(after_in_child=_disown_all)


def _named(text: str, members: Sequence[int]) -> str:
    """Which members of a group a text speaks of, by their numbers outside."""
    spoken = re.findall(r"\branks? (\d+)(?: and (\d+))?", text)
    numbers = sorted({int(one) for pair in spoken for one in pair if one})
    known = [f"rank {one} is rank {members[one]}" for one in numbers if one < len(members)]
    return f" (in this group {', '.join(known)} of torch.distributed)" if known else ""


class Context:
    """Owner of an msdu_ctx. Errors are :class:`msdu.Error` with the library's text.

    Args:
        given: settings.
        is_probe: made to ask something, never started: it does not list its settings.
        store: by which ranks meet where no setting says otherwise.

    ``handle`` is None once destroyed, or in a forked child. ``place``: where its tensors are.
    ``members``: their numbers outside of the group, if these are others. ``has_regrouped``: a call
    came back from a change of the group (setting ranks_least) that nobody has followed yet.
    """

    place = _abi.PLACE_HOST

    def __init__(
        self,
        given: Mapping[str, Any],
        is_probe: bool = False,
        store: Optional[_store.Store] = None,
    ) -> None:
        self.lib = lib = _abi.library()
        config = _abi.Config(size=ctypes.sizeof(_abi.Config))
        config.settings = _settings.lines(given).encode()
        config.config_file = _settings.config_file(given)
        config.log = _PROBE_LOG if is_probe else _LOG
        config.log_level = _log_level()  # MSDU_LOG wins
        self._store = store  # which the library calls until start() is over
        if store is not None:
            config.store = ctypes.pointer(store.table)
        handle = ctypes.c_void_p()
        lib.check(lib.create(ctypes.byref(config), ctypes.byref(handle)))
        self.handle: Optional[int] = handle.value
        self.on_disown: Callable[[], None] = lambda: None
        self._summary = _abi.SummaryStruct(size=ctypes.sizeof(_abi.SummaryStruct))
        self.members: Sequence[int] = ()
        self.has_regrouped = False
        self._destroy = weakref.finalize(self, lib.destroy, handle.value)
        _live.add(self)

    def disown(self) -> None:
        """Forget the context without a call: this process is a child."""
        self.handle = None
        self._destroy.detach()
        self.on_disown()

    def destroy(self) -> None:
        """Leave the group and free everything; allowed twice."""
        self.handle = None
        self._destroy()

    def call(self, function: Callable[..., int], *args: Any) -> None:
        """``function(ctx, *args)`` of the library; raises on an error."""
        if self.handle is None:
            raise _abi.Error(_abi.ERR_STATE, "this attachment is closed, or lives in the parent")
        code = function(self.handle, *args)
        if code == _abi.REGROUPED:
            self.has_regrouped = True
        elif code < 0:
            self.refuse(code)

    def refuse(self, code: int) -> NoReturn:
        """Raise this thread's last error; it names ranks by their numbers in the group."""
        text = self.lib.last_error().decode(errors="replace")
        raise _abi.Error(code, text + _named(text, self.members))

    def start(self) -> None:
        """msdu_start(): ranks meet. What interrupted the wait for the store is raised here."""
        try:
            self.call(self.lib.start)
        finally:
            if self._store is not None and self._store.interrupt is not None:
                raise self._store.interrupt

    def add(
        self,
        name: str,
        parameter: int,
        gradient: int,
        count: int,
        dtype: int,
        role: int,
        order: int,
    ) -> int:
        """Add a tensor of ``count`` elements at two addresses (0: none); its id."""
        desc = _abi.TensorDesc(
            size=ctypes.sizeof(_abi.TensorDesc),
            name=name.encode(),
            parameter=parameter or None,
            gradient=gradient or None,
            count=count,
            dtype=dtype,
            role=role,
            priority=order,
            place=self.place,
        )
        number = ctypes.c_uint32()
        self.call(self.lib.tensor_add, ctypes.byref(desc), ctypes.byref(number))
        return number.value

    def summary(self) -> _abi.SummaryStruct:
        """The counters; one struct, overwritten by the next call."""
        self.call(self.lib.summary_get, ctypes.byref(self._summary))
        return self._summary

    def state(self) -> ctypes.Array[ctypes.c_char]:
        """What msdu_state_get() gives."""
        size = ctypes.c_size_t()
        self.call(self.lib.state_get, None, 0, ctypes.byref(size))
        data = ctypes.create_string_buffer(max(size.value, 1))
        self.call(self.lib.state_get, data, size.value, ctypes.byref(size))
        return data
