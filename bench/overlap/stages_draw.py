#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the schedule of `msdu plan --stages ... --json` as SVG: a row for each machine, a box for
each action with the number of its micro-batch.

    msdu plan --stages machines.json --profile gpt.json --micro-batches 8 --json |
        bench/overlap/stages_draw.py --out schedule.svg

Several files are drawn one below another on the same scale of time. bench/pipeline/compare.py
writes such files of steps that it measured. Needs nothing but Python. Two stages of a machine have
a light and a dark shade.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

# By kind: a machine's first stage, and its second.
COLORS = {"F": ("#8fb3e0", "#4c72b0"), "B": ("#f2b48f", "#dd8452"),
          "I": ("#f2b48f", "#dd8452"), "W": ("#a8d5ae", "#55a868")}
WORDS = {"F": "forward", "B": "backward", "I": "gradients of inputs", "W": "gradients of weights"}
WIDTH = 1000.0
ROW = 34.0
LEFT = 120.0
TOP = 30.0


def load(text: str) -> dict[str, Any]:
    """The plan. SystemExit with one line if it is none."""
    try:
        plan = json.loads(text)
    except ValueError as error:
        raise SystemExit(f"stages_draw: no JSON: {error}") from None
    if not isinstance(plan, dict) or plan.get("name") != "stages" or not plan.get("ranks"):
        raise SystemExit("stages_draw: no output of msdu plan --stages --json")
    return plan


def box(action: dict[str, Any], y: float, shade: int, scale: float) -> list[str]:
    """An action; its number only where there is room."""
    x = LEFT + action["begin_us"] * scale
    width = (action["end_us"] - action["begin_us"]) * scale
    out = [f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{ROW - 6:.1f}" '
           f'fill="{COLORS[action["kind"]][shade]}" stroke="white" stroke-width="0.5"/>']
    number = str(action["micro_batch"])
    if width > 6 * len(number) + 2:
        out.append(f'<text x="{x + width / 2:.2f}" y="{y + ROW / 2 + 1:.1f}" '
                   f'text-anchor="middle">{number}</text>')
    return out


def legend(kinds: list[str], y: float) -> list[str]:
    """Which color is what."""
    out = []
    for i, kind in enumerate(kinds):
        x = LEFT + 170 * i
        out.append(f'<rect x="{x:.0f}" y="{y - 10:.1f}" width="12" height="12" '
                   f'fill="{COLORS[kind][0]}"/>')
        out.append(f'<text x="{x + 18:.0f}" y="{y:.1f}">{WORDS[kind]}</text>')
    return out


def title(plan: dict[str, Any]) -> str:
    """What a picture is of."""
    least = f', at least {plan["bound_us"] / 1e6:.4g} s' if plan.get("bound_us") else ""
    return (f'{plan["profile"]}: {plan["micro_batches"]} micro-batches, step '
            f'{plan["step_us"] / 1e6:.4g} s{least}')


def rows(plan: dict[str, Any], top: float, scale: float) -> list[str]:
    """The machines of a plan."""
    out = [f'<text x="{LEFT:.0f}" y="{top - 12:.1f}">{escape(title(plan))}</text>']
    for row, rank in enumerate(plan["ranks"]):
        first = min(action["stage"] for action in rank["actions"])
        y = top + row * ROW
        out.append(f'<text x="8" y="{y + ROW / 2 + 1:.1f}">{escape(rank["machine"])}</text>')
        for action in rank["actions"]:
            out += box(action, y, int(action["stage"] != first), scale)
    return out


def draw(*plans: dict[str, Any]) -> str:
    """The picture as SVG text: plans one below another."""
    scale = (WIDTH - LEFT - 20) / max(plan["step_us"] for plan in plans)
    height = sum(TOP + ROW * len(plan["ranks"]) for plan in plans) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
           'font-family="sans-serif" font-size="11">',
           f'<rect width="{WIDTH:.0f}" height="{height:.0f}" fill="white"/>']
    top = TOP
    for plan in plans:
        out += rows(plan, top, scale)
        top += ROW * len(plan["ranks"]) + TOP
    kinds = sorted({action["kind"] for plan in plans for rank in plan["ranks"]
                    for action in rank["actions"]}, key="FBIW".index)
    return "\n".join([*out, *legend(kinds, height - 18), "</svg>", ""])


def main() -> int:
    """Draw what is on standard input, or in a file."""
    parser = argparse.ArgumentParser(description="Schedule of msdu plan --stages --json.")
    parser.add_argument("plan", nargs="*", type=Path, help="files (default: standard input)")
    parser.add_argument("--out", type=Path, required=True, help="SVG")
    args = parser.parse_args()
    texts = [file.read_text(encoding="utf-8") for file in args.plan] or [sys.stdin.read()]
    args.out.write_text(draw(*map(load, texts)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
