# SPDX-License-Identifier: Apache-2.0
"""Run a command as ranks on hosts, joined by shaped links, on one machine.

sudo python3 bench/lab --ranks 4 --rate 100mbit -- python3 train.py
sudo python3 bench/lab --hosts 2 --per-host 2 --speeds 1,1,1,.25 -- python3 train.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import job
import kernel
import network
import pace
import quota
import relay
import report

STATUS_UNFIT = 77  # what CTest takes for "skipped"

_Counted = list[network.Counts]  # by host


def _rates(text: str) -> list[float | None]:
    try:
        return [network.parse_rate(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _speeds(text: str) -> tuple[float, ...]:
    try:
        return pace.parse_speeds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _shares(text: str) -> tuple[float, ...]:
    try:
        return quota.parse_shares(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cpus(text: str) -> list[frozenset[int]]:
    """One set of cores per entry of a list such as 0,1 or 0-3,4-7."""
    try:
        ends = [[int(end) for end in entry.split("-")] for entry in text.split(",")]
        sets = [frozenset(range(entry[0], entry[-1] + 1)) for entry in ends]
    except ValueError:
        sets = []
    if not sets or not all(sets) or not frozenset().union(*sets) <= os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(
            f"'{text}' names no cores of {sorted(os.sched_getaffinity(0))}; such as 0,1 or 0-3"
        )
    return sets


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value


def _add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("network").add_argument
    add("--ranks", type=int, metavar="N", help="on a host each (2)")
    add("--hosts", type=int, metavar="H", help="instead, with --per-host ranks each")
    text = "of a host, which reach each other over its loopback (1)"
    add("--per-host", type=int, default=1, metavar="N", help=text)
    text = "of every link, each way, such as 200mbit or 1gbit, or those of host 0, 1, ..., in "
    text += "turn: 1gbit,100mbit; default none: not shaped"
    add("--rate", type=_rates, default=[None], metavar="R", help=text)
    text = "from a host to any other, one way, by a relay that costs processor time (0)"
    add("--delay", type=float, default=0.0, metavar="MS", help=text)
    add("--burst", type=int, metavar="BYTES", help="that may pass at once (2 ms of the rate)")
    text = "that may wait at each end (20 ms of the rate, at least 64 frames, at most 4 MiB)"
    add("--queue", type=int, metavar="BYTES", help=text)
    add("--mtu", type=int, default=1500, metavar="BYTES", help="of every link (1500)")
    text = "TCP's congestion control (cubic); default: the kernel's own choice"
    add("--congestion", default="cubic", metavar="NAME", help=text)


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    add("--timeout", type=float, metavar="S", help="of a run; then all ranks are stopped")
    text = "for the other ranks after one failed (10)"
    add("--grace", type=float, default=10.0, metavar="S", help=text)
    text = "cores of rank 0, 1, ..., in turn: 0,1 or 0-3,4-7"
    add("--cpus", type=_cpus, default=[], metavar="LIST", help=text)
    text = "for every rank, may be repeated; %%r in it is the rank"
    add("--env", type=_variable, action="append", default=[], metavar="NAME=VALUE", help=text)
    add("--repeat", type=int, default=1, metavar="K", help="runs, one after another (1)")


def _add_speeds(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("ranks of different speeds").add_argument
    text = "of rank 0, 1, ..., in turn, such as 1,1,.5,.25: a rank is stopped for the rest of "
    text += f"every {pace.PERIOD_S * 1e3:g} ms"
    add("--speeds", type=_speeds, default=(), metavar="LIST", help=text)
    text = f"ranks are {pace.BURST_FACTOR:g} times as slow at times that follow from the seed: "
    text += f"{pace.BURST_S:g} s of {pace.BURST_S + pace.CALM_S:g}, on average"
    add("--bursts", type=int, metavar="SEED", help=text)
    text = "cores of rank 0, 1, ..., in turn, such as 1,.5,.25,.25, by a quota for every "
    text += f"{quota.PERIOD_US / 1e3:g} ms; 0: no limit; needs root"
    add("--cpu-share", type=_shares, default=(), metavar="LIST", help=text)


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("output").add_argument
    text = "output of rank r is appended to DIR/rank<r>.log; without, only rank 0's is kept"
    add("--output-dir", metavar="DIR", help=text)
    add("--json", metavar="FILE", help="records of all runs, written after each")
    add("--live", action="store_true", help="a line per second: what each link carries")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab",
        usage="python3 bench/lab [options] -- COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog="Needs iproute2, and root or a kernel that lets users make namespaces.\n"
        "Exit status: 77 where it cannot run, 124 at the timeout, else that of the first rank "
        "that failed.",
    )
    _add_network(parser)
    _add_run(parser)
    _add_speeds(parser)
    _add_output(parser)
    text = "what every rank runs"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help=text)
    return parser


def _place_ranks(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """--ranks N is N hosts of one rank."""
    if options.ranks is not None and (options.hosts is not None or options.per_host != 1):
        parser.error("--ranks N is for N hosts of one rank each: give --hosts and --per-host alone")
    options.hosts = options.hosts or options.ranks or 2
    options.ranks = options.hosts * options.per_host
    for name, count in (("speeds", options.ranks), ("cpu_share", options.ranks),
                        ("rate", options.hosts)):
        given = getattr(options, name)
        if given and count % len(given) != 0:
            what = "hosts" if name == "rate" else "ranks"
            parser.error(f"{len(given)} --{name.replace('_', '-')} do not divide {count} {what}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    if not options.command:
        parser.error("no command; such as: lab --ranks 4 --rate 100mbit -- python3 train.py")
    limits = {
        "ranks": (1, network.HOSTS_MAX),
        "hosts": (1, network.HOSTS_MAX),
        "per_host": (1, network.HOSTS_MAX),
        "repeat": (1, 10**6),
        "mtu": (576, 65535),
        "delay": (0, 10**4),
        "grace": (0, 10**6),
        "burst": (1500, 1 << 30),
        "queue": (1500, 1 << 30),
        "timeout": (0.001, 10**9),
    }
    for name, (low, high) in limits.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            name = name.replace("_", "-")
            parser.error(f"--{name} {value} is out of range; allowed: {low} .. {high}")
    _place_ranks(parser, options)
    return options


def _link(options: argparse.Namespace, rate: float | None) -> network.Link:
    burst, queue = options.burst or 0, options.queue or 0
    if rate is not None:
        burst = burst or network.default_burst(rate, options.mtu)
        queue = queue or network.default_queue(rate, options.mtu)
    return network.Link(
        rate,
        burst,
        queue,
        options.mtu,
        options.delay,
        network.choose_congestion(options.congestion),
    )


def _since(now: _Counted, then: _Counted) -> _Counted:
    return [count.since(old) for count, old in zip(now, then)]


def _run(net: network.Network, plan: job.Plan, is_live: bool) -> dict[str, Any]:
    """One run and its record."""
    delay = net.link.delay_ms
    helpers = {relay.start(net.hosts, delay): "relay"} if delay > 0 else {}
    begin = last = net.counts()
    frames = net.relayed_frames()
    last_at = 0.0

    def show(at: float) -> None:
        nonlocal last, last_at
        now = net.counts()
        print(report.live(at, at - last_at, _since(now, last), net.rates), file=sys.stderr)
        last, last_at = now, at

    done = job.Job(net, plan, helpers)
    done.watch(show if is_live else None)
    record = report.run_record(net, done, _since(net.counts(), begin))
    if helpers:
        record["relay"] = report.relay_record(done, frames, net.relayed_frames())
    return record


def _build(options: argparse.Namespace) -> network.Network:
    """The network that the options describe, in a namespace that is ours already; Unfit."""
    try:
        kernel.own_mounts()
        kernel.mount("proc", "/proc")
        links = [_link(options, rate) for rate in options.rate]
        links *= options.hosts // len(links)
        return network.Network(links, options.per_host)
    except OSError as error:
        raise network.Unfit(f"no network of our own: {error}") from error


def _work(options: argparse.Namespace, quotas: Sequence[int]) -> int:
    """Build, run, report; the first process of namespaces of our own."""
    net = _build(options)
    plan = job.Plan(
        options.command,
        dict(options.env),
        options.cpus,
        options.output_dir,
        options.timeout,
        options.grace,
        pace.speeds_of(options.ranks, options.speeds, options.bursts),
        quotas,
    )
    speeds = {"speeds": list(options.speeds) or None, "bursts": options.bursts,
              "cpu_share": list(options.cpu_share) or None}
    whole = report.whole_record(net, speeds, options.command)
    for _ in range(options.repeat):
        run = _run(net, plan, options.live)
        whole["runs"].append(run)
        lines = (report.headline(net), report.table(run, net.rates))
        print(*lines, sep="\n", flush=True)
        if options.json:
            report.write_json(options.json, whole)
        if run["exit_status"] != 0:
            return int(run["exit_status"])
    return 0


def _prepare(options: argparse.Namespace) -> None:
    """What can fail before anything is made: rights, programs, places to write; Unfit, OSError."""
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise network.Unfit(f"needs the program {tool} (Debian: iproute2)")
    if options.output_dir is not None:
        os.makedirs(options.output_dir, exist_ok=True)
        for rank in range(options.ranks):
            open(job.log_path(options.output_dir, rank), "wb").close()
    if options.json is not None:
        report.check_place(options.json)


def _guarded(work: Callable[[], int]) -> int:
    """Status of work(), or a line about what it could not do and the status for that."""
    try:
        return work()
    except network.Unfit as error:
        print(f"lab: {error}", file=sys.stderr)
        return STATUS_UNFIT
    except OSError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _isolated(options: argparse.Namespace) -> int:
    """Run the lab in namespaces that vanish with it; Unfit, OSError."""
    _prepare(options)
    try:
        with quota.made(options.cpu_share, options.ranks) as quotas:
            return kernel.run_isolated(lambda: _guarded(lambda: _work(options, quotas)))
    except OSError as error:
        text = f"needs root, or the right to make namespaces ({error}): sudo python3 bench/lab ..."
        raise network.Unfit(text) from error


def main(arguments: Sequence[str]) -> int:
    """Exit status of the command line."""
    options = _parse(arguments)
    return _guarded(lambda: _isolated(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
