# SPDX-License-Identifier: Apache-2.0
"""Train with plain allreduce, a fixed interval and the default policy; compare and draw."""

import argparse
import csv
import json
import pathlib
import shutil
import signal
import statistics
import sys
import time

import numpy as np

import digits_to_idx
import plot
import ranks

FIXED = {"MSDU_DOMAIN": "parameter", "MSDU_INTERVAL": "fixed", "MSDU_WIRE": "float32"}
ALLREDUCE = {**FIXED, "MSDU_DOMAIN": "gradient", "MSDU_INTERVAL_STEPS": "1"}
METHODS = ("allreduce", "fixed", "default")
FIXED_STEPS = 8
LINE_EVERY_S = 5.0  # where output is not a terminal


def settings_of(method):
    """Environment of a method; fixed-N is fixed with another interval than 8."""
    if method == "allreduce":
        return ALLREDUCE
    if method == "default":
        return {}
    name, _, steps = method.partition("-")
    if name != "fixed" or not (steps == "" or steps.isdigit()):
        sys.exit(f"demo: unknown method {method}")
    return {**FIXED, "MSDU_INTERVAL_STEPS": steps or str(FIXED_STEPS)}


class Progress:
    """One line that updates on a terminal; elsewhere a line every few seconds."""

    def __init__(self, title):
        self.title = title
        self.is_terminal = sys.stdout.isatty()
        self.next_time = time.monotonic() + LINE_EVERY_S
        self.latest = None

    def show(self, lines):
        if not lines or lines[0] == self.latest:
            return
        self.latest = lines[0]
        width = shutil.get_terminal_size().columns - 1
        if self.is_terminal:
            print(f"\r{self.title}: {lines[0]}"[:width].ljust(width), end="", flush=True)
        elif time.monotonic() >= self.next_time:
            print(f"{self.title}: {lines[0]}", flush=True)
            self.next_time = time.monotonic() + LINE_EVERY_S

    def end(self, text):
        width = shutil.get_terminal_size().columns - 1 if self.is_terminal else 0
        start = "\r" if self.is_terminal else ""
        print(f"{start}{self.title}: {text}".ljust(width), flush=True)


def trainer_command(args, seed, folder):
    command = [str(args.trainer), "--data", str(args.data), "--progress"]
    for name in ("layers", "optimizer", "lr", "epochs", "batch"):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name}", str(value)]
    command += ["--seed", str(seed), "--json", str(folder / "rank-%r.json")]
    command += ["--params", str(folder / "rank-%r.params")]
    command += ["--log-steps", str(folder / "steps.csv")]
    return command


def rank_difference(folder, count):
    """Largest difference of any parameter between any two ranks, from what each one wrote."""
    all_ranks = np.stack(
        [np.fromfile(folder / f"rank-{rank}.params", dtype=np.float32) for rank in range(count)]
    )
    if all_ranks.size == 0 or not np.isfinite(all_ranks).all():
        raise ranks.RankFailure(f"{folder}: parameters are missing or not finite")
    return float(np.max(all_ranks.max(axis=0) - all_ranks.min(axis=0)))


def run_method(args, method, seed):
    folder = args.folder / "runs" / f"{method}-seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    progress = Progress(f"{method}, seed {seed}" if args.seeds > 1 else method)
    ranks.run_ranks(
        trainer_command(args, seed, folder),
        folder,
        args.ranks,
        args.rate,
        settings_of(method),
        args.limit,
        progress.show,
    )
    each = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(args.ranks)]
    result = {
        "name": method,
        "accuracy": each[0]["accuracy"],
        "bytes_per_rank": max(one["bytes_per_rank"] for one in each),
        "rounds": each[0]["rounds"],
        "seconds": round(max(one["seconds"] for one in each), 3),
        "waited_share": round(statistics.mean(one["waited_share"] for one in each), 4),
        "max_rank_difference": rank_difference(folder, args.ranks),
    }
    progress.end(f"accuracy {result['accuracy']:.2%} after {result['seconds']:.1f} s")
    return result


def read_steps(args, method, seed):
    with open(args.folder / "runs" / f"{method}-seed-{seed}" / "steps.csv", newline="") as lines:
        return [(int(row["step"]), int(row["h"]), row["wire"]) for row in csv.DictReader(lines)]


def print_table(results):
    print(
        f"\n{'method':<10} {'accuracy':>9} {'rounds':>7} {'sent per rank':>14} "
        f"{'seconds':>8} {'waited':>7} {'rank difference':>16}"
    )
    for one in results:
        print(
            f"{one['name']:<10} {one['accuracy']:>9.2%} {one['rounds']:>7} "
            f"{one['bytes_per_rank'] / 1e6:>11.3f} MB {one['seconds']:>8.1f} "
            f"{one['waited_share']:>7.1%} {one['max_rank_difference']:>16g}"
        )


def save(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")
    print(f"wrote {path}")


def check_equal(results):
    """All ranks must end with the same bits; anything else is a defect, not a result."""
    for one in results:
        if one["max_rank_difference"] != 0:
            sys.exit(f"demo: {one['name']}: ranks differ by {one['max_rank_difference']:g}")


def run_once(args):
    results = [run_method(args, method, args.seed) for method in args.methods]
    print_table(results)
    sent = {one["name"]: one["bytes_per_rank"] for one in results}
    if sent.get("allreduce") and sent.get("default"):
        print(f"default sent {sent['allreduce'] / sent['default']:.0f} times fewer bytes")
    print()
    save(args.folder / "result.json", {"methods": results})
    steps = {method: read_steps(args, method, args.seed) for method in args.methods}
    plot.draw(args.folder / "result.png", {one["name"]: [one] for one in results}, steps)
    print(f"wrote {args.folder / 'result.png'}")
    check_equal(results)


def spread(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def print_spread(by_method):
    print(
        f"\n{'method':<10} {'accuracy':>9} {'spread':>7} "
        f"{'sent per rank':>14} {'fewer bytes':>12}"
    )
    plain = statistics.mean(one["bytes_per_rank"] for one in next(iter(by_method.values())))
    for name, runs in by_method.items():
        accuracy = [one["accuracy"] for one in runs]
        sent = statistics.mean(one["bytes_per_rank"] for one in runs)
        print(
            f"{name:<10} {statistics.mean(accuracy):>9.2%} {spread(accuracy):>7.2%} "
            f"{sent / 1e6:>11.3f} MB {plain / sent:>11.1f}x"
        )
    print("spread: standard deviation over seeds; fewer bytes: than the first method\n")


def run_seeds(args):
    seeds = range(args.seed, args.seed + args.seeds)
    by_method = {method: [] for method in args.methods}
    for seed in seeds:
        for method in args.methods:
            by_method[method].append(run_method(args, method, seed))
    print_spread(by_method)
    fields = [key for key in next(iter(by_method.values()))[0] if key != "name"]
    table = [
        {"name": name, **{key: [one[key] for one in runs] for key in fields}}
        for name, runs in by_method.items()
    ]
    save(args.folder / "seeds.json", {"seeds": list(seeds), "methods": table})
    steps = {method: read_steps(args, method, args.seed) for method in args.methods}
    plot.draw(args.folder / "seeds.png", by_method, steps)
    print(f"wrote {args.folder / 'seeds.png'}")
    check_equal([one for runs in by_method.values() for one in runs])


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    path = lambda text: pathlib.Path(text).absolute()
    parser.add_argument("--trainer", type=path, required=True)
    parser.add_argument("--folder", type=path, required=True, help="where results go")
    parser.add_argument("--data", type=path, help="idx files; default: the digits are written")
    parser.add_argument("--methods", default=",".join(METHODS), help="%(default)s, or fixed-N")
    parser.add_argument("--seeds", type=int, default=1, help="runs per method")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", default="200mbit", help="of each rank's link; none: loopback")
    parser.add_argument("--layers", default="256-128")
    parser.add_argument("--optimizer", choices=("sgd", "adam"))
    parser.add_argument("--lr", type=float)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="per rank")
    parser.add_argument("--limit", type=float, default=600, help="seconds one run may take")
    args = parser.parse_args()
    args.methods = args.methods.split(",")
    args.rate = None if args.rate == "none" else args.rate
    if args.seeds < 1 or args.ranks < 1:
        parser.error("--seeds and --ranks start at 1")
    return args


def main():
    args = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended too
    if args.data is None:
        args.data = args.folder / "data"
        counts = digits_to_idx.write_digits(args.data)
        print(f"digits: {counts[0]} images to train, {counts[1]} to test, {args.ranks} ranks")
    try:
        reason = ranks.why_no_lab(args.rate) if args.rate else ""
        if reason:
            print(f"over loopback, where there is little to hide: {reason}")
            args.rate = None
        if args.seeds > 1:
            run_seeds(args)
        else:
            run_once(args)
    except ranks.RankFailure as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
