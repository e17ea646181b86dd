# SPDX-License-Identifier: Apache-2.0
"""The C interface (msdu.h) through ctypes: structs, functions, statuses; works without torch."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import (
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Optional

# msdu_what, msdu_dtype, msdu_role, msdu_place of msdu.h
GRADIENT = 1
PARAMETER = 2
ALL_TENSORS = 0xFFFFFFFF
FLOAT32, FLOAT64, FLOAT16, BFLOAT16 = range(4)
ROLE_MODEL, ROLE_STATE, ROLE_BUFFER, ROLE_FIXED = range(4)
PLACE_HOST, PLACE_DEVICE = range(2)

REGROUPED = 2

ERR_INVALID = -1
ERR_UNSUPPORTED = -2
ERR_NOT_FOUND = -3
ERR_STATE = -5
ERR_MISMATCH = -6
ERR_TIMEOUT = -7
ERR_NOT_FINITE = -9
ERR_IO = -10

# What can be said without a library; the others come from msdu_status_name().
_NAMES = {
    ERR_INVALID: "MSDU_ERR_INVALID",
    ERR_UNSUPPORTED: "MSDU_ERR_UNSUPPORTED",
    ERR_NOT_FOUND: "MSDU_ERR_NOT_FOUND",
    ERR_STATE: "MSDU_ERR_STATE",
    ERR_MISMATCH: "MSDU_ERR_MISMATCH",
    ERR_TIMEOUT: "MSDU_ERR_TIMEOUT",
    ERR_NOT_FINITE: "MSDU_ERR_NOT_FINITE",
}

LOG_FN = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
STORE_SET_FN = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, c_uint64, c_void_p)
STORE_GET_FN = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_char_p, c_void_p, ctypes.POINTER(c_size_t), c_uint64, c_void_p
)
STORE_WHY_BYTES = 256


class Error(RuntimeError):
    """What went wrong, in the library's words where the library found it.

    Attributes:
        status: name of the msdu_status, such as ``"MSDU_ERR_TIMEOUT"``.
        code: its value, negative.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.status = _NAMES.get(code) or _name_of(code)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.code, str(self)))


class StoreTable(ctypes.Structure):
    """msdu_store."""

    _fields_ = [
        ("size", c_size_t),
        ("user", c_void_p),
        ("epoch", c_uint64),
        ("set", STORE_SET_FN),
        ("get", STORE_GET_FN),
    ]


class Config(ctypes.Structure):
    """msdu_config: every setting travels in ``settings``, one ``name = value`` a line."""

    _fields_ = [
        ("size", c_size_t),
        ("config_file", c_char_p),
        ("log", LOG_FN),
        ("log_user", c_void_p),
        ("log_level", c_int32),
        ("by_lines", c_char * 436),  # fields whose value goes by `settings`
        ("settings", c_char_p),
        ("store", ctypes.POINTER(StoreTable)),
    ]


class TensorDesc(ctypes.Structure):
    """msdu_tensor_desc."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("parameter", c_void_p),
        ("gradient", c_void_p),
        ("count", c_uint64),
        ("dtype", c_int32),
        ("role", c_int32),
        ("priority", c_int32),
        ("place", c_int32),
    ]


class SummaryStruct(ctypes.Structure):
    """msdu_summary."""

    _fields_ = [
        ("size", c_size_t),
        ("steps", c_uint64),
        ("rounds", c_uint64),
        ("bytes_sent", c_uint64),
        ("bytes_plain", c_uint64),
        ("wait_ns", c_uint64),
        ("elapsed_ns", c_uint64),
        ("plan_renewals", c_uint64),
        ("interval_steps", c_uint64),
        ("drift", c_double),
        ("divergence", c_double),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("wire", c_char_p),
        ("domain", c_char_p),
        ("interval", c_char_p),
        ("reason", c_char * 128),
        ("cpu_ns", c_uint64),
        ("slice_bytes", c_uint64),
        ("window", c_uint32),
        ("slice_cuts", c_uint32),
        ("lanes", c_uint32),
        ("missed", c_uint64),
        ("network_ns", c_uint64),
        ("straggler_ns", c_uint64),
        ("common_steps", c_uint64),
        ("state", c_char_p),
        ("bytes_inside", c_uint64),
        ("hosts", c_uint32),
        ("carriers", c_uint32),
        ("gradient_ranks", c_uint32),
        ("epoch", c_uint64),
        ("ranks_lost", c_uint32),
        ("ranks_joined", c_uint32),
        ("has_given", c_int32),
        ("was_given", c_int32),
    ]


class SettingInfo(ctypes.Structure):
    """msdu_setting_info."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("environment", c_char_p),
        ("type", c_char_p),
        ("default_text", c_char_p),
        ("range", c_char_p),
        ("help", c_char_p),
    ]


class Resolved(ctypes.Structure):
    """msdu_resolved."""

    _fields_ = [
        ("size", c_size_t),
        ("text", ctypes.c_char * 512),
        ("origin", ctypes.c_char * 512),
    ]


class Work(ctypes.Structure):
    """msdu_work."""

    _fields_ = [
        ("size", c_size_t),
        ("total", c_uint64),
        ("batch", c_uint64),
        ("ahead", c_uint64),
        ("position", c_uint64),
        ("step", c_uint64),
        ("begin", c_uint64),
        ("end", c_uint64),
    ]


AHEAD_MOST = 64  # of msdu_work.ahead

_CTX = c_void_p
# name: argument types of functions that return msdu_status.
_STATUS_FUNCTIONS: dict[str, list[Any]] = {
    "msdu_create": [ctypes.POINTER(Config), ctypes.POINTER(_CTX)],
    "msdu_tensor_add": [_CTX, ctypes.POINTER(TensorDesc), ctypes.POINTER(c_uint32)],
    "msdu_tensor_set": [_CTX, c_uint32, c_int, c_void_p],
    "msdu_tensor_ready": [_CTX, c_uint32, c_int],
    "msdu_tensor_wait": [_CTX, c_uint32, c_int],
    "msdu_tensor_ready_on": [_CTX, c_uint32, c_int, c_void_p],
    "msdu_tensor_wait_on": [_CTX, c_uint32, c_int, c_void_p],
    "msdu_start": [_CTX],
    "msdu_step": [_CTX],
    "msdu_set_lr": [_CTX, c_double],
    "msdu_set_loss": [_CTX, c_double],
    "msdu_set_clipping": [_CTX],
    "msdu_set_weight": [_CTX, c_double],
    "msdu_join": [_CTX],
    "msdu_next": [_CTX, ctypes.POINTER(Work)],
    "msdu_synchronize": [_CTX],
    "msdu_share": [_CTX, c_void_p, c_size_t],
    "msdu_sync_after_step": [_CTX],
    "msdu_local_drift_get": [_CTX, c_uint32, c_void_p],
    "msdu_finish": [_CTX],
    "msdu_rollback": [_CTX],
    "msdu_state_get": [_CTX, c_void_p, c_size_t, ctypes.POINTER(c_size_t)],
    "msdu_state_set": [_CTX, c_void_p, c_size_t],
    "msdu_summary_get": [_CTX, ctypes.POINTER(SummaryStruct)],
    "msdu_setting_get": [c_uint32, ctypes.POINTER(SettingInfo)],
    "msdu_setting_resolve": [ctypes.POINTER(Config), c_char_p, ctypes.POINTER(Resolved)],
}
# Of these two the interpreter's lock is kept: they never block, and giving the lock away costs more
# than they do, and may cost a time slice where data loaders have threads.
_QUICK = ("msdu_tensor_set", "msdu_tensor_ready")


class Library:
    """The loaded libmsdu: ``path``, ``version``, and its functions as attributes."""

    def __init__(self, path: str) -> None:
        self.path = path
        plain = ctypes.CDLL(path)  # RTLD_LOCAL: torch has a Gloo of its own
        quick = ctypes.PyDLL(path)
        for name, types in _STATUS_FUNCTIONS.items():
            function = getattr(quick if name in _QUICK else plain, name, None)
            if function is None:
                function = _missing(name, path)
            else:
                function.argtypes = types
                function.restype = c_int
            setattr(self, name[len("msdu_") :], function)
        for name in ("msdu_version", "msdu_last_error", "msdu_status_name", "msdu_status_text"):
            function = getattr(plain, name)
            function.restype = c_char_p
            setattr(self, name[len("msdu_") :], function)
        plain.msdu_destroy.argtypes = [_CTX]
        plain.msdu_destroy.restype = None
        self.destroy: Any = plain.msdu_destroy
        self.version_text: str = self.version().decode()

    def __getattr__(self, name: str) -> Any:  # for type checkers: set in __init__
        raise AttributeError(name)

    def check(self, code: int) -> None:
        """Raise Error with this thread's last text if ``code`` is an error."""
        if code < 0:
            raise Error(code, self.last_error().decode(errors="replace"))


def _missing(name: str, path: str) -> Any:
    def refuse(*_: Any) -> int:
        raise Error(ERR_UNSUPPORTED, f"{path} is too old for this package: it has no {name}()")

    return refuse


_library: Optional[Library] = None


def _name_of(code: int) -> str:
    if _library is None:
        return f"MSDU_STATUS_{code}"
    name: bytes = _library.status_name(code)
    return name.decode()


def _candidates() -> list[str]:
    """Where the library may be, in order; what MSDU_LIBRARY names is the only candidate if set."""
    named = os.environ.get("MSDU_LIBRARY")
    if named:
        return [named]
    inside = Path(__file__).resolve().parent / "lib" / "libmsdu.so"
    found = ctypes.util.find_library("msdu")
    return [str(inside), "libmsdu.so.0.3", "libmsdu.so"] + ([found] if found else [])


def library() -> Library:
    """The library, loaded at the first call.

    Looked for in MSDU_LIBRARY (a path), in the package (``msdu/lib``), by the system's loader.

    Raises:
        Error: MSDU_ERR_NOT_FOUND with every place that was looked at.
    """
    global _library
    if _library is not None:
        return _library
    tried = []
    for path in _candidates():
        try:
            _library = Library(path)
            return _library
        except OSError as problem:
            tried.append(str(problem))
    hint = "set MSDU_LIBRARY to the path of libmsdu.so, or install a wheel that carries it"
    raise Error(ERR_NOT_FOUND, f"libmsdu was not found: {'; '.join(tried)}. {hint}")


def version() -> str:
    """Version of the loaded library, such as ``"0.3.0"``."""
    return library().version_text
