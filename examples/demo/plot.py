# SPDX-License-Identifier: Apache-2.0
"""Draw accuracy against bytes, and the interval over the steps."""

import statistics

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: E402

COLORS = {"allreduce": "#5b6770", "fixed": "#d98a1f", "default": "#1f6fb4"}
OTHERS = ("#7a9e3b", "#a05195", "#2a9d8f", "#8c564b")
MARKERS = {"allreduce": "s", "fixed": "^", "default": "o"}


def color_of(name, names):
    rest = [other for other in names if other not in COLORS]
    return COLORS.get(name) or OTHERS[rest.index(name) % len(OTHERS)]


def bytes_text(value, _position=None):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} B"


def draw_accuracy(axes, results):
    """A point per method; of several seeds each run, their mean, and a bar of the spread."""
    by_bytes = sorted(results, key=lambda name: results[name][0]["bytes_per_rank"])
    for name, runs in results.items():
        color = color_of(name, list(results))
        above = by_bytes.index(name) % 2 == 0  # neighbors' texts must not meet
        sent = [one["bytes_per_rank"] for one in runs]
        accuracy = [100 * one["accuracy"] for one in runs]
        center = (statistics.mean(sent), statistics.mean(accuracy))
        bar = statistics.stdev(accuracy) if len(runs) > 1 else 0
        if len(runs) > 1:
            axes.scatter(sent, accuracy, s=14, color=color, alpha=0.35, linewidths=0)
            axes.errorbar(*center, yerr=bar, color=color, capsize=4, lw=1.5)
        axes.scatter(*center, s=80, color=color, marker=MARKERS.get(name, "D"), zorder=3)
        axes.annotate(
            f"{name}  {center[1]:.1f} %",
            (center[0], center[1] + (bar if above else -bar)),
            xytext=(0, 12 if above else -12),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            color=color,
            fontsize=10,
            fontweight="bold",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(bytes_text))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_xlim()
    axes.set_xlim(low / 2.2, high * 2.2)
    low, high = axes.get_ylim()
    room = max(1.0, high - low)
    axes.set_ylim(low - 0.6 * room, high + 0.6 * room)
    axes.set_xlabel("bytes sent per rank (log scale, fewer is better)")
    axes.set_ylabel("test accuracy in %")
    axes.set_title("Accuracy against bytes", loc="left", fontsize=12)


def wire_text(rows):
    """Number formats in the order of their first use; at most three, so that the legend fits."""
    wires = list(dict.fromkeys(wire for _step, _h, wire in rows))
    return " → ".join(wires if len(wires) <= 3 else [wires[0], "…", wires[-1]])


def draw_interval(axes, steps):
    for name, rows in steps.items():
        axes.step(
            [step for step, _h, _wire in rows],
            [h for _step, h, _wire in rows],
            where="post",
            color=color_of(name, list(steps)),
            lw=2.2 if name == "default" else 1.6,
            label=f"{name} ({wire_text(rows)})",
        )
    largest = max(h for rows in steps.values() for _step, h, _wire in rows)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
    axes.set_ylim(0.8, 3 * max(largest, 2))
    axes.set_xlabel("step")
    axes.set_ylabel("interval h in steps (log scale)")
    axes.set_title("Steps between synchronizations", loc="left", fontsize=12)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def draw(path, results, steps):
    """results: method -> runs (a run per seed); steps: method -> rows (step, h, wire)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), dpi=130)
    draw_accuracy(left, results)
    draw_interval(right, steps)
    for axes in (left, right):
        axes.grid(True, which="major", color="#e3e6e8", lw=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout(w_pad=3)
    figure.savefig(path)
    plt.close(figure)
