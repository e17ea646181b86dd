# SPDX-License-Identifier: Apache-2.0
"""No circle of files: who calls whom in each library of src/, by the symbols of its objects. And
no struct that everybody shares: at most 40 fields, and a name that no other struct has.

check_calls.py SOURCES BUILD: the folder src, and what was built of it. What is wrong is printed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


FIELDS_MOST = 40


def graph_of(sources: Path, objects: Path) -> dict[str, set[str]]:
    """By file, the files that define what it needs."""
    owner: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    for path in sorted(objects.rglob("*.o")):
        name = str(path.relative_to(objects)).removesuffix(".o").replace("__/", "../")
        if not (sources / name).exists():
            continue  # of an earlier build: the file is gone
        name = os.path.normpath(sources / name)
        needs[name] = set()
        done = subprocess.run(["nm", path], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            kind, symbol = line.split()[-2:]
            if kind == "U":
                needs[name].add(symbol)
            elif kind in "TDBR":
                owner[symbol] = name
    return {
        name: {owner[s] for s in symbols if s in owner} - {name}
        for name, symbols in needs.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one file."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for other in graph[left.pop()] - seen:
                seen.add(other)
                left.append(other)
        return seen

    reach = {name: reached(name) for name in graph}
    found = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in graph if a in reach[a]}
    return [list(names) for names in sorted(found)]


def structs(sources: Path) -> list[str]:
    """What is wrong with structs; settings.inc makes one of a list, whose rows are not counted."""
    wrong = []
    seen: dict[str, Path] = {}
    for path in sorted([*sources.rglob("*.h"), *sources.rglob("*.c")]):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for name, body in re.findall(r"struct (\w+) ?\{([^{}]*)\}", text):
            fields = len(re.findall(";", re.sub(r"\([^;]*\)", "", body)))
            if fields > FIELDS_MOST:
                wrong.append(f"{path}: struct {name} has {fields} fields")
            if name.startswith("msdu__") and seen.setdefault(name, path) != path:
                wrong.append(f"{path}: struct {name} is in {seen[name]} too")
    if len(seen) < 60:
        wrong.append(f"{sources}: {len(seen)} structs only")
    return wrong


def main() -> int:
    """Print what is wrong."""
    sources, build = Path(sys.argv[1]), Path(sys.argv[2])
    files = 0
    wrong = 0
    for objects in sorted(build.rglob("*.dir")):
        folder = sources / objects.parent.parent.relative_to(build)
        graph = graph_of(folder, objects)
        files += len(graph)
        for names in circles(graph):
            wrong += 1
            print("a circle of files:")
            for name in names:
                others = graph[name].intersection(names)
                print(f"  {name} -> {' '.join(sorted(others))}")
    for line in structs(sources):
        wrong += 1
        print(line)
    if files < 60:
        print(f"{build}: objects of {files} files only")
    return 1 if wrong or files < 60 else 0


if __name__ == "__main__":
    sys.exit(main())
