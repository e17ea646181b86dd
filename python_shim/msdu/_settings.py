# SPDX-License-Identifier: Apache-2.0
"""Settings of the library by name: what there is, and Python values as its text; no torch."""

from __future__ import annotations

import ctypes
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from . import _abi


@dataclass(frozen=True)
class Setting:
    """One setting, as ``msdu info`` prints it. All are texts.

    Attributes:
        name: as a keyword of :func:`msdu.attach`.
        environment: the variable that wins over the keyword.
        type: ``"text"``, ``"integer"``, ``"real"`` or ``"choice"``.
        default: ``""`` if there is none.
        range: such as ``"1 .. 64"``, or the choices.
        help: one line.
    """

    name: str
    environment: str
    type: str
    default: str
    range: str
    help: str


def settings() -> dict[str, Setting]:
    """Every setting of the loaded library, by name, but for those of ``msdu run``."""
    lib = _abi.library()
    found: dict[str, Setting] = {}
    info = _abi.SettingInfo(size=ctypes.sizeof(_abi.SettingInfo))
    while lib.setting_get(len(found), ctypes.byref(info)) == 0:
        texts = [
            getattr(info, field).decode()
            for field in ("name", "environment", "type", "default_text", "range", "help")
        ]
        found[texts[0]] = Setting(*texts)
    return {n: one for n, one in found.items() if not one.environment.startswith("MSDU_ATTACH")}


def _invalid(text: str) -> _abi.Error:
    return _abi.Error(_abi.ERR_INVALID, text)


def _text_of(setting: Setting, value: Any) -> str:
    if isinstance(value, bool):
        if setting.range != "no, yes":
            raise _invalid(f"{setting.name}: {value} is not one of {setting.range}")
        return "yes" if value else "no"
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
    elif isinstance(value, float):
        text = repr(value)
    elif hasattr(value, "__index__"):
        text = str(value.__index__())
    elif hasattr(value, "__float__"):
        text = repr(float(value))
    else:
        raise _invalid(f"{setting.name}: {value!r} is neither a number, a bool nor a text")
    if "\n" in text or "\r" in text or text != text.strip():
        raise _invalid(f"{setting.name}: {text!r} cannot be written as a line of settings")
    return text


SECOND_MOMENTS = ("mean", "own")


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Settings of the library, and ``second_moments``, which is the package's own.

    Raises:
        msdu.Error: MSDU_ERR_INVALID where second_moments is none of its choices.
    """
    rest = dict(given)
    value = rest.pop("second_moments", None) or SECOND_MOMENTS[0]
    if value == "keep":
        raise _invalid("second_moments: 'keep' is gone since 0.3; 'mean', the default, is as good")
    if value not in SECOND_MOMENTS:
        raise _invalid(f"second_moments: {value!r} is not one of {', '.join(SECOND_MOMENTS)}")
    return rest, value


def _gone(name: str) -> str:
    """What holds instead of a setting that the library had once; empty if it never had it."""
    lib = _abi.library()
    resolved = _abi.Resolved(size=ctypes.sizeof(_abi.Resolved))
    lib.setting_resolve(None, name.encode(), ctypes.byref(resolved))
    _, colon, instead = lib.last_error().decode().partition("': ")
    return colon[1:] + instead


def check(given: Mapping[str, Any]) -> None:
    """Refuse names that the library does not know.

    Raises:
        msdu.Error: MSDU_ERR_INVALID with the names that come close.
    """
    known = settings()
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, "second_moments"], n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise _invalid(f"unknown setting {name!r}{_gone(name) or hint}")


def lines(given: Mapping[str, Any]) -> str:
    """Settings as lines of msdu_config.settings; None means the default.

    The values' ranges are checked by the library when a context is made.
    """
    check(given)
    known = settings()
    return "".join(
        f"{name} = {_text_of(known[name], value)}\n"
        for name, value in given.items()
        if value is not None and name != "config_file"
    )


def config_file(given: Mapping[str, Any]) -> Optional[bytes]:
    """The setting config_file, which cannot be a line."""
    path = given.get("config_file")
    return os.fsencode(path) if path is not None else None
