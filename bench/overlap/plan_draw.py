#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `msdu plan --json` predicts: a step by each method beside the bound, and the step over
the number of ranks by topology, of exact steps and of the controller's choice.

    build/bin/msdu plan --profile resnet50 --rate-mbit 10000 --json |
        bench/overlap/plan_draw.py --out plan.svg

The suffix of --out says the format. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]
COLORS = {"ring": "#4c72b0", "tree": "#dd8452", "hierarchical": "#55a868", "direct": "#8172b3"}


def load(path: str) -> list[Record]:
    """Records from a file, or from standard input; SystemExit with one line if they are none."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        records = json.loads(text)
        if not any(r["name"] in ("method", "controller", "ranks") for r in records):
            raise ValueError("no record of msdu plan")
        return list(records)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"plan_draw: {path}: {error}") from None


def draw_methods(axes: Any, records: list[Record]) -> None:
    """A bar for each method: computing, what is waited, and a mark at the bound."""
    rows = [r for r in records if r["name"] in ("method", "controller")]
    places = range(len(rows))
    compute = [r["compute_us"] / 1e3 for r in rows]
    axes.barh(places, compute, color="#bbbbbb", label="computing")
    axes.barh(places, [max(0.0, r["step_us"] / 1e3 - c) for r, c in zip(rows, compute)],
              left=compute, color="#c44e52", label="waited")
    axes.plot([r["bound_us"] / 1e3 for r in rows], places, "k|", markersize=14, label="bound")
    axes.set_yticks(places, [f"{r['method']} (h {r['interval']}, {r['wire']})" for r in rows])
    axes.invert_yaxis()
    axes.set_xlabel("step, ms")
    axes.legend(fontsize="small")


def draw_ranks(axes: Any, records: list[Record]) -> None:
    """Lines over ranks; the controller's are dashed and named by h and wire where they change."""
    rows = [r for r in records if r["name"] == "ranks"]
    for topology in dict.fromkeys(r["topology"] for r in rows):
        for method in dict.fromkeys(r["method"] for r in rows):
            line = [r for r in rows if r["topology"] == topology and r["method"] == method]
            is_chosen = method == "defaults"
            axes.plot([r["ranks"] for r in line], [r["step_us"] / 1e3 for r in line],
                      "--" if is_chosen else "-", marker="." if is_chosen else "o",
                      markersize=4, color=COLORS.get(topology),
                      label=f"{topology}, {'controller' if is_chosen else method}")
            before = ""
            for r in line if is_chosen else []:
                choice = f"{r['interval']}/{r['wire']}"
                if choice != before:
                    axes.annotate(choice, (r["ranks"], r["step_us"] / 1e3), fontsize=6,
                                  xytext=(0, 4), textcoords="offset points")
                before = choice
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="step, ms")
    axes.set_xscale("log", base=2)
    axes.legend(fontsize="small")


def main() -> int:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description="Draws the records of msdu plan --json.")
    parser.add_argument("file", nargs="?", default="-", help="records; default standard input")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    args = parser.parse_args()
    records = load(args.file)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "msdu"
    has_ranks = any(r["name"] == "ranks" for r in records)
    figure, axes = pyplot.subplots(1, 2 if has_ranks else 1, figsize=(13 if has_ranks else 7, 5),
                                   squeeze=False)
    draw_methods(axes[0][0], records)
    if has_ranks:
        draw_ranks(axes[0][1], records)
    figure.suptitle(f"{records[0]['profile']}, predicted by msdu plan")
    figure.tight_layout()
    figure.savefig(args.out, metadata={"Date": None} if args.out.suffix == ".svg" else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
