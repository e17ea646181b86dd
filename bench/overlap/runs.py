# SPDX-License-Identifier: Apache-2.0
"""Where records of overlap_table.py are kept: one compressed file, and new runs beside it.

    OUT/records.jsonl.xz     packed: one record a line, with its run; in the project's history
    OUT/records/RUN.json     runs since then, until pack() takes them in; git ignores the folder
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def single(out: Path, run: str) -> Path:
    """The file of a run that is not packed yet."""
    return out / "records" / f"{run}.json"


def load(path: Path) -> dict[str, list[Record]]:
    """Records by run, of a packed file or of a single run. OSError, ValueError, KeyError."""
    if path.suffix != ".xz":
        return {path.stem: json.loads(path.read_text(encoding="utf-8"))}
    found: dict[str, list[Record]] = {}
    try:
        lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error
    for record in map(json.loads, lines):
        found.setdefault(record.pop("run"), []).append(record)
    return found


def load_all(out: Path) -> dict[str, list[Record]]:
    """All runs of a folder, by name; a single one takes the place of a packed one."""
    packed = out / "records.jsonl.xz"
    found = load(packed) if packed.exists() else {}
    for path in (out / "records").glob("*.json"):
        found.update(load(path))
    return {run: found[run] for run in sorted(found)}


def pack(out: Path) -> None:
    """Take single runs into the compressed file and remove theirs."""
    runs = load_all(out)
    lines = "".join(json.dumps({"run": run, **record}) + "\n"
                    for run, records in runs.items() for record in records)
    (out / "records.jsonl.xz").write_bytes(lzma.compress(lines.encode(), preset=9))
    for path in (out / "records").glob("*.json"):
        path.unlink()
