#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random faults on jobs whose ranks come and go (setting ranks_least): each number is a job of real
processes over Gloo, with faults at random moments, and what must hold after them.

    test/campaign/campaign.py --faults 1000 --out campaign.jsonl
    test/campaign/campaign.py --only 17 --keep

A job is drawn from its number alone, so a defect comes back by --only. The command goes on where the
file of results ends. One line a job: number, what was done, what went wrong; status 1 if anything
did. What must hold:

- every process ends, within the deadlines;
- those that are well hold the same parameters, bit by bit, and have ended the same steps;
- where ranks were only killed, all others are well; where one was stopped for longer than the
  deadline, a majority is;
- who is not well says why, in one line, by a status that the fault explains;
- nothing is left in shared memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

BUILD = Path(__file__).resolve().parents[2] / "build"  # another one by --build
RANKS = 4
DEADLINE_MS = 2000
SILENCE_S = 5.0  # a member that answers nothing for so long is silent (src/members)
STEPS = 60
LIMIT_S = 60.0  # stands for "it hangs"
MODES = {
    "exact": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "1", "MSDU_WIRE": "float32"},
    "int4": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "1", "MSDU_WIRE": "int4"},
    "blocking": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "4", "MSDU_OVERLAP": "blocking"},
    "delayed": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "6", "MSDU_OVERLAP": "delayed"},
    "streamed": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "8", "MSDU_OVERLAP": "streamed"},
    "outer": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "5", "MSDU_CORRECT": "outer"},
    "parameter": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "3", "MSDU_DOMAIN": "parameter"},
    "clock": {"MSDU_INTERVAL": "fixed", "MSDU_UNEVEN": "clock"},
    "default": {},
    "hosts": {"MSDU_INTERVAL": "fixed", "MSDU_INTERVAL_STEPS": "5"},  # two, by name
}
KINDS = ("kill", "kill", "kill two", "kill all but one", "kill and return", "join", "join and die",
         "stop", "stop for long", "nan", "other program", "wrong secret")


@dataclasses.dataclass
class Event:
    """Something that is done to a process, seconds after all others have started."""

    at: float
    what: str  # start, kill, stop, go on
    who: int
    extra: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass
class Plan:
    """A job, as its number says."""

    number: int
    mode: str
    kind: str
    pause: int  # milliseconds of a step
    events: list[Event]
    killed: set[int]
    stopped: set[int]  # for longer than the deadline
    odd: set[int]  # that must not be let in
    ends_all: bool = False


def draw(number: int) -> Plan:
    """The job of a number."""
    dice = random.Random(number)
    mode = dice.choice(list(MODES))
    kind = dice.choice(KINDS)
    pause = dice.choice((5, 20, 40))
    span = STEPS * pause / 1000

    def when() -> float:
        """Seconds: at any time, or while the ranks meet."""
        return dice.uniform(0.0, 1.1 * span) if dice.random() < 0.8 else dice.uniform(0.0, 0.3)

    ranks = dice.sample(range(RANKS), RANKS)
    plan = Plan(number, mode, kind, pause, [], set(), set(), set())
    one = ranks[0]
    if kind.startswith("kill"):
        plan.killed = set(ranks[: {"kill two": 2, "kill all but one": 3}.get(kind, 1)])
        first = when()
        for who in plan.killed:
            at = first if dice.random() < 0.5 else when()
            plan.events.append(Event(at, "kill", who))
        if kind == "kill and return":
            plan.events.append(Event(first + dice.uniform(0, span), "start", RANKS + one))
    elif kind in ("join", "join and die"):
        at = when()
        plan.events.append(Event(at, "start", RANKS))
        if kind == "join and die":
            plan.killed = {RANKS}
            plan.events.append(Event(at + dice.uniform(0, 1.0), "kill", RANKS))
    elif kind in ("stop", "stop for long"):
        at = when()
        length = dice.uniform(0.01, 1.0) if kind == "stop" else SILENCE_S + 3 + dice.uniform(0, 3)
        plan.events += [Event(at, "stop", one), Event(at + length, "go on", one)]
        plan.stopped = {one} if kind == "stop for long" else set()
    elif kind == "nan":
        plan.ends_all = True
    else:
        odd = RANKS
        plan.odd = {odd}
        secret = (("MSDU_JOB_SECRET", "not that of the others"),)
        plan.events.append(
            Event(when(), "start", odd, ("other=1",) if kind == "other program" else (),
                  secret if kind == "wrong secret" else ()))
    plan.events.sort(key=lambda event: event.at)
    return plan


class Job:
    """The processes of a plan."""

    def __init__(self, plan: Plan, folder: Path, build: Path) -> None:
        self.build = build
        self.plan = plan
        self.folder = folder
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.kept = {name: value for name, value in os.environ.items()
                     if not name.startswith(("MSDU_", "OMPI_", "PMI_", "SLURM_", "MASTER_"))}

    def start(self, who: int, *extra: str, **environment: str) -> None:
        """Start a process; its output goes to a file."""
        env = {
            **self.kept,
            "MSDU_MODULE_PATH": str(self.build / "lib"),
            "MSDU_RANKS": str(RANKS),
            "MSDU_RANK": str(who % RANKS),
            "MSDU_RANKS_LEAST": "1",
            "MSDU_RENDEZVOUS": f"file://{self.folder}",
            "MSDU_DEADLINE_MS": str(DEADLINE_MS),
            "MSDU_JOB_SECRET": "sixteen random bytes",
            **MODES[self.plan.mode],
            **({"MSDU_HOSTS": f"host{who % RANKS // 2}"} if self.plan.mode == "hosts" else {}),
            **environment,
        }
        words = [f"id={who}", f"steps={STEPS}", f"pause={self.plan.pause}",
                 f"apart={int(who >= RANKS)}", *extra]
        with (self.folder / f"{who}.out").open("wb") as out:
            self.processes[who] = subprocess.Popen(
                [str(self.build / "test" / "epochs_rank"), *words], env=env, stdout=out, stderr=out)

    def do(self, event: Event) -> None:
        """One event; nothing where the process is over."""
        if event.what == "start":
            self.start(event.who, *event.extra, **dict(event.environment))
            return
        process = self.processes[event.who]
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "go on": signal.SIGCONT}
        if process.poll() is None:
            process.send_signal(number[event.what])

    def end(self, limit: float) -> list[int]:
        """Wait for all; those that hang, which are killed."""
        until = time.monotonic() + limit
        hung = []
        for who, process in self.processes.items():
            try:
                process.wait(max(until - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                hung.append(who)
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        return hung

    def said(self, who: int) -> dict[str, str]:
        """What a process printed, by key."""
        text = (self.folder / f"{who}.out").read_text(encoding="utf-8", errors="replace")
        found: dict[str, str] = {}
        for line in text.splitlines():
            key, _, value = line.partition(f".{who} ")
            if key.isalnum():
                found[key] = value
        return found


def shared_memory() -> set[str]:
    """What lies there now."""
    return {entry.name for entry in Path("/dev/shm").glob("msdu-*") if "standin" not in entry.name}


def judge(job: Job, hung: list[int]) -> list[str]:
    """What went wrong."""
    plan = job.plan
    wrong = [f"{who} hangs" for who in hung]
    said = {who: job.said(who) for who in job.processes}
    codes = {who: process.returncode for who, process in job.processes.items()}
    well = {who for who in said if said[who].get("status") == "MSDU_OK"}
    wrong += [f"{who} ended by {code}" for who, code in codes.items()
              if code != 0 and who not in hung and not (who in plan.killed and code == -9)]
    for key in ("hash", "steps"):
        values = {said[who].get(key) for who in well}
        if len(values) > 1:
            wrong.append(f"{key} differs: " + ", ".join(f"{w} {said[w].get(key)}" for w in sorted(well)))
    dead = {who for who, code in codes.items() if code == -9}
    started = all("started" in said[who] for who in range(RANKS) if who not in dead)
    for who, words in said.items():
        if who in well or who in dead or who in hung:
            continue
        if not words.get("error"):
            wrong.append(f"{who} says nothing: {words.get('status')}")
        elif not is_explained(plan, who, words, started, dead):
            wrong.append(f"{who}: {words.get('status')}: {words['error']}")
    wrong += [f"{who} was let in" for who in plan.odd & well]
    if plan.ends_all and well:
        wrong.append(f"{sorted(well)} trained on with a NaN")
    return wrong


def is_explained(plan: Plan, who: int, words: dict[str, str], started: bool, dead: set[int]) -> bool:
    """May this process have failed so?"""
    status = words.get("status")
    if plan.ends_all:
        return status == "MSDU_ERR_NOT_FINITE"
    if who in plan.odd:
        return status in ("MSDU_ERR_MISMATCH", "MSDU_ERR_DENIED", "MSDU_ERR_PEER_LOST",
                          "MSDU_ERR_TIMEOUT", "MSDU_ERR_IO")
    if who >= RANKS:  # the job may end, or be gone, before it is let in
        return "started" not in words or status == "MSDU_ERR_PEER_LOST"
    if not started and (dead or plan.stopped):
        return status in ("MSDU_ERR_TIMEOUT", "MSDU_ERR_PEER_LOST")  # before all had met
    return who in plan.stopped and status in ("MSDU_ERR_PEER_LOST", "MSDU_ERR_TIMEOUT")


def run(plan: Plan, keep: bool, build: Path) -> dict[str, Any]:
    """Do it; its line."""
    folder = Path(tempfile.mkdtemp(prefix="msdu-campaign-"))
    before = shared_memory()
    job = Job(plan, folder, build)
    began = time.monotonic()
    for who in range(RANKS):
        nan = plan.kind == "nan" and who == plan.number % RANKS
        job.start(who, *((f"nan={plan.number % STEPS}",) if nan else ()))
    base = time.monotonic()
    for event in plan.events:
        time.sleep(max(base + event.at - time.monotonic(), 0))
        job.do(event)
    wrong = judge(job, job.end(LIMIT_S))
    left = shared_memory() - before
    wrong += [f"left in shared memory: {name}" for name in sorted(left)]
    line = {"number": plan.number, "mode": plan.mode, "kind": plan.kind,
            "events": [(round(e.at, 3), e.what, e.who) for e in plan.events],
            "seconds": round(time.monotonic() - began, 1), "wrong": wrong}
    if keep or wrong:
        line["folder"] = str(folder)
    if not keep and not wrong:
        shutil.rmtree(folder)
    return line


def done(path: Optional[Path]) -> set[int]:
    """Numbers that a file of results has."""
    if path is None or not path.exists():
        return set()
    return {json.loads(line)["number"] for line in path.read_text(encoding="utf-8").splitlines()}


def main() -> int:
    """0; 1: something went wrong; 77: there is no Gloo here."""
    parser = argparse.ArgumentParser(description="Random faults on jobs whose ranks come and go.")
    parser.add_argument("--faults", type=int, default=12, help="jobs, by number (12)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (0)")
    parser.add_argument("--only", type=int, help="this one alone")
    parser.add_argument("--out", type=Path, help="file of results, which is gone on with")
    parser.add_argument("--build", type=Path, default=BUILD, help="build folder (build)")
    parser.add_argument("--keep", action="store_true", help="keep folders of jobs")
    args = parser.parse_args()
    if not (args.build / "lib" / "libmsdu_gloo.so").exists():
        print("skipped: this build has no Gloo")
        return 77
    numbers = range(args.first, args.first + args.faults)
    numbers = range(args.only, args.only + 1) if args.only is not None else numbers
    skipped = done(args.out)
    bad = count = 0
    for number in numbers:
        if number in skipped:
            continue
        line = run(draw(number), args.keep, args.build)
        count += 1
        bad += 1 if line["wrong"] else 0
        text = json.dumps(line)
        print(text, flush=True)
        if args.out is not None:
            with args.out.open("a", encoding="utf-8") as out:
                out.write(text + "\n")
    print(f"{count} jobs, {bad} with something wrong", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
