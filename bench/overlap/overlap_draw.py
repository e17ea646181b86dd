#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the timeline of a rank of `msdu bench overlap --trace FILE`: computing, and slices on the
lanes of the link, over a few steps.

    build/bin/msdu bench overlap --methods free --trace /tmp/t-%m-%r.json
    bench/overlap/overlap_draw.py /tmp/t-free-0.json --out timeline.png --merge timeline.json

The trace itself, without computing, opens in Perfetto (ui.perfetto.dev) and chrome://tracing;
--merge writes both into one file for them. Drawing needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Event = dict[str, Any]
COLORS = {"F": "#4c72b0", "B": "#dd8452", "link": "#55a868"}


def load(path: Path) -> list[Event]:
    """Events of a trace and of the computing beside it; times in us since the context's start.

    SystemExit with one line if a file is missing or no trace.
    """
    events: list[Event] = []
    for part in (path, Path(f"{path}.compute")):
        try:
            events += json.loads(part.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SystemExit(f"overlap_draw: {part}: {error}") from None
    return events


def spans_of(events: list[Event], first: int, steps: int) -> list[tuple[str, str, float, float]]:
    """Row, kind, begin and length (ms) of what happened in the steps wanted."""
    compute = [e for e in events if e.get("cat") == "compute"]
    inside = [e for e in compute if first <= e["args"]["step"] < first + steps]
    if not inside:
        there = [e["args"]["step"] for e in compute]
        has = f"{min(there)} to {max(there)}" if there else "none"
        raise SystemExit(f"overlap_draw: no computing in steps {first} to {first + steps - 1}; the "
                         f"trace has {has} (--first, --steps)")
    begin = min(e["ts"] for e in inside)
    end = max(e["ts"] + e["dur"] for e in inside)
    lanes = {e["tid"]: e["args"]["name"] for e in events
             if e.get("ph") == "M" and e.get("name") == "thread_name"}
    out = [("computing", e["name"][0], (e["ts"] - begin) / 1e3, e["dur"] / 1e3) for e in inside]
    for e in events:
        if e.get("cat") == "link" and e["ts"] < end and e["ts"] + e["dur"] > begin:
            row = str(lanes.get(e["tid"], e["tid"]))
            out.append((row, "link", (e["ts"] - begin) / 1e3, e["dur"] / 1e3))
    return out


def draw(spans: list[tuple[str, str, float, float]], title: str, path: Path) -> None:
    """A row for computing and one for each lane, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    rows = ["computing", *sorted({row for row, *_ in spans} - {"computing"})]
    figure, axes = pyplot.subplots(figsize=(12, 1.2 + 0.5 * len(rows)))
    for row, kind, begin, length in spans:
        axes.broken_barh([(begin, length)], (rows.index(row) - 0.4, 0.8), edgecolor="white",
                         linewidth=0.3, facecolor=COLORS[kind])
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(title)
    axes.legend(handles=[Patch(color=COLORS["F"], label="forward"),
                         Patch(color=COLORS["B"], label="backward"),
                         Patch(color=COLORS["link"], label="slice on the link")],
                loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    """Draw, merge, or both."""
    parser = argparse.ArgumentParser(description="Timeline of msdu bench overlap.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--first", type=int, default=16, help="step to begin with (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="how many (%(default)s)")
    parser.add_argument("--out", type=Path, help="PNG")
    parser.add_argument("--merge", type=Path, help="one trace with computing, for Perfetto")
    args = parser.parse_args()
    events = load(args.trace)
    if args.merge:
        args.merge.write_text(json.dumps(events) + "\n", encoding="utf-8")
    if args.out:
        draw(spans_of(events, args.first, args.steps), args.trace.stem, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
