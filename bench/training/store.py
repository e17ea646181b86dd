# SPDX-License-Identifier: Apache-2.0
"""Where the records of a comparison are kept: one compressed file, and new runs beside it.

    OUT/records.jsonl.xz     packed: one record a line, sorted by key; in the project's history
    OUT/records/KEY.json     runs since then, until pack() takes them in; git ignores the folder
    OUT/records/KEY.failed   why a run has no record
"""
from __future__ import annotations

import json
import lzma
import os
import pathlib

from .record import Record, problems

PACKED = "records.jsonl.xz"
SINGLE = "records"


def _checked(record: Record, where: str) -> Record:
    """The record. Raises ValueError where it is not as it should be."""
    wrong = problems(record)
    if wrong:
        raise ValueError(f"{where}: {'; '.join(wrong)}")
    return record


def _replace(file: pathlib.Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    part.replace(file)


def _single(out: pathlib.Path) -> dict[pathlib.Path, Record]:
    """Records that are not packed yet, by file."""
    return {file: _checked(json.loads(file.read_text(encoding="utf-8")), str(file))
            for file in sorted((out / SINGLE).glob("*.json"))}


def _merged(out: pathlib.Path, single: dict[pathlib.Path, Record]) -> list[Record]:
    """All records, sorted by key; a single one takes the place of a packed one with its key."""
    file = out / PACKED
    found: dict[str, Record] = {}
    if file.exists():
        try:
            lines = lzma.decompress(file.read_bytes()).decode().splitlines()
        except lzma.LZMAError as error:
            raise ValueError(f"{file}: {error}") from error
        for line in lines:
            record = json.loads(line)
            found[_checked(record, str(file))["key"]] = record
    found.update((record["key"], record) for record in single.values())
    return [found[key] for key in sorted(found)]


def failed(out: pathlib.Path, key: str) -> pathlib.Path:
    """The file that says why the run of this key has no record, if it has none."""
    return out / SINGLE / f"{key}.failed"


def failures(out: pathlib.Path) -> list[pathlib.Path]:
    """All such files, sorted."""
    return sorted((out / SINGLE).glob("*.failed"))


def save(record: Record, out: pathlib.Path) -> pathlib.Path:
    """Write a record into a file of its own. Raises ValueError for a bad record."""
    _checked(record, f"record {record.get('key')}")
    file = out / SINGLE / f"{record['key']}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    _replace(file, (json.dumps(record, indent=1) + "\n").encode())
    return file


def load_all(out: pathlib.Path) -> list[Record]:
    """All records, oldest first. Raises ValueError where one is not as it should be."""
    return sorted(_merged(out, _single(out)), key=lambda record: str(record["started"]))


def pack(out: pathlib.Path) -> int:
    """Take single records into the compressed file and remove their files; how many there were.

    The same records give the same bytes, whatever was packed before and in what order.
    """
    single = _single(out)
    if single:
        lines = "".join(json.dumps(record) + "\n" for record in _merged(out, single))
        _replace(out / PACKED, lzma.compress(lines.encode(), preset=9))
        for file in single:
            file.unlink()
    return len(single)
