# SPDX-License-Identifier: Apache-2.0
"""No circle of files: who calls whom inside libmsdu, by the symbols of its objects.

check_calls.py SOURCES FOLDER: sources of the core, and the folder of its objects. Files of one
circle are printed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def graph_of(sources: Path, folder: Path) -> dict[str, set[str]]:
    """By file, the files that define what it needs."""
    owner: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.o")):
        name = str(path.relative_to(folder)).removesuffix(".o")
        if not (sources / name).exists():
            continue  # of an earlier build: the file is gone
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
    found = {
        tuple(sorted(b for b in reach[a] if a in reach[b])) for a in graph if a in reach[a]
    }
    return [list(names) for names in sorted(found)]


def main() -> int:
    """Print what is wrong."""
    graph = graph_of(Path(sys.argv[1]), Path(sys.argv[2]))
    if len(graph) < 20:
        print(f"{sys.argv[2]}: no objects of the core")
        return 1
    wrong = circles(graph)
    for names in wrong:
        print("a circle of files:", *names)
        for name in names:
            print(f"  {name} -> {' '.join(sorted(graph[name].intersection(names)))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
