# SPDX-License-Identifier: Apache-2.0
"""torchrun's agents whose workers come and go (``--rdzv-backend=msdu``): real agents on this
machine, killed with their workers or without."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

pytest.importorskip("torch", minversion="2.4")

HERE = Path(__file__).parent
LATE_S = 120


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def installed(folder: Path) -> Path:
    """What pip leaves of the package's entry points."""
    text = (HERE.parent / "pyproject.toml").read_text()
    found = re.search(r'^\[project\.entry-points\."([\w.]+)"\].*\n(.+)$', text, re.MULTILINE)
    assert found is not None
    info = folder / "msdu-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: msdu\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        f"[{found[1]}]\n" + found[2].replace('"', "") + "\n"
    )
    return folder


class Agents:
    """Agents and what their workers print."""

    def __init__(self, folder: Path, endpoint: str, nodes: str) -> None:
        self.end = folder / "end"
        self._log = folder
        self.words = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"),
            *("--max-restarts=3", "--monitor-interval=0.1", "--rdzv-backend=msdu"),
            *(f"--rdzv-endpoint={endpoint}", "--rdzv-id=run7"),
        ]
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{installed(folder)}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "MSDU_LOG": "info",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int = 1) -> int:
        number = len(self.processes)
        script = [str(HERE / "scripts" / "elastic.py"), str(self.end)]
        with (self._log / f"{number}.out").open("wb") as out:
            with (self._log / f"{number}.err").open("wb") as problems:
                self.processes.append(
                    subprocess.Popen(
                        [*self.words, f"--nproc-per-node={workers}", *script],
                        env=self.environment,
                        stdout=out,
                        stderr=problems,
                    )
                )
        return number

    def rows(self, number: int) -> list[dict[str, Any]]:
        lines = (self._log / f"{number}.out").read_text().splitlines(True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pids(self, number: int) -> list[int]:
        """Its workers, in the order of their starts."""
        return [row["pid"] for row in self.rows(number) if "imported" in row]

    def problems(self) -> str:
        return "".join(path.read_text()[-3000:] for path in sorted(self._log.glob("*.err")))

    def until(self, what: Callable[[], bool]) -> None:
        limit = time.monotonic() + LATE_S
        while not what():
            assert time.monotonic() < limit, self.problems()
            time.sleep(0.1)

    def ranks(self, number: int) -> int:
        """As a worker of it said last."""
        return int(([0] + [row["ranks"] for row in self.rows(number) if "at" in row])[-1])

    def rank(self, number: int) -> int:
        return int([row["rank"] for row in self.rows(number) if "at" in row][-1])

    def at(self) -> int:
        every = [row for n in range(len(self.processes)) for row in self.rows(n)]
        return max(row.get("at", 0) for row in every)

    def finish(self, numbers: list[int]) -> list[dict[str, Any]]:
        draft = self.end.with_suffix(".new")
        draft.write_text(str(self.at() + 100))
        draft.rename(self.end)
        for number in numbers:
            assert self.processes[number].wait(LATE_S) == 0, self.problems()
        return [row for number in numbers for row in self.rows(number) if "model" in row]

    def kill(self, number: int, with_workers: bool = True) -> None:
        os.kill(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()
        if with_workers:
            os.kill(self.pids(number)[-1], signal.SIGKILL)

    def close(self) -> None:
        for number, process in enumerate(self.processes):
            process.kill()
            process.wait()
            for pid in self.pids(number):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


@pytest.fixture
def agents(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agents]:
    place, nodes = getattr(request, "param", ("tcp", "1:4"))
    endpoint = f"file://{tmp_path}" if place == "file" else f"127.0.0.1:{free_port()}"
    made = Agents(tmp_path, endpoint, nodes)
    yield made
    made.close()


def test_a_lost_worker_is_started_again_and_no_other_one(agents: Agents) -> None:
    for _ in range(3):
        agents.start()
    agents.until(lambda: all(agents.ranks(n) == 3 for n in range(3)))
    first = [agents.pids(n) for n in range(3)]
    lost = next(n for n in range(3) if agents.rank(n) == 0)
    os.kill(first[lost][0], signal.SIGKILL)
    agents.until(lambda: len(agents.pids(lost)) == 2)
    agents.until(lambda: "started" in agents.rows(lost)[-1] or "at" in agents.rows(lost)[-1])
    agents.until(lambda: all(agents.ranks(n) == 3 for n in range(3)))
    ends = agents.finish([0, 1, 2])
    starts = [row["started"] for row in agents.rows(lost) if "started" in row]
    assert len(starts) == 2 and starts[1] > starts[0]  # it went on where the others were
    for number in range(3):
        assert len(agents.pids(number)) == (2 if number == lost else 1)
    assert len(ends) == 3
    assert len({(end["model"], end["batches"], end["ranks"]) for end in ends}) == 1


@pytest.mark.parametrize("agents", [("file", "2:3")], indirect=True)
def test_an_agent_is_killed_and_another_one_started(agents: Agents) -> None:
    agents.start()
    agents.until(lambda: len(agents.pids(0)) == 1)
    time.sleep(5)
    assert not any("started" in row for row in agents.rows(0))  # one is fewer than two
    agents.start()
    agents.until(lambda: all(agents.ranks(n) == 2 for n in range(2)))
    agents.start()
    agents.until(lambda: all(agents.ranks(n) == 3 for n in range(3)))
    lost = next(n for n in range(3) if agents.rank(n) == 0)
    agents.kill(lost)
    left = [n for n in range(3) if n != lost]
    agents.until(lambda: all(agents.ranks(n) == 2 for n in left))
    agents.start()
    left.append(3)
    agents.until(lambda: all(agents.ranks(n) == 3 for n in left))
    ends = agents.finish(left)
    assert all(len(agents.pids(number)) == 1 for number in range(4))
    assert len(ends) == 3
    assert len({(end["model"], end["batches"], end["ranks"]) for end in ends}) == 1


def test_agents_of_several_workers_and_one_that_dies_alone(agents: Agents) -> None:
    for _ in range(2):
        agents.start(workers=2)
    agents.until(lambda: agents.ranks(0) == 4 and agents.ranks(1) == 4)
    agents.kill(1, with_workers=False)  # its workers belong to the job as before
    before = agents.at()
    agents.until(lambda: agents.at() > before + 50)
    assert agents.ranks(0) == 4
    ends = agents.finish([0])
    assert len({(end["model"], end["ranks"]) for end in ends}) == 1 and len(ends) == 2


def test_the_example_under_an_agent(agents: Agents) -> None:
    pytest.importorskip("sklearn")
    example = str(HERE.parents[1] / "examples" / "elastic_train.py")
    done = subprocess.run(
        [*agents.words, "--nproc-per-node=2", example, "--epochs=3"],
        env=agents.environment,
        capture_output=True,
        text=True,
        timeout=LATE_S,
    )
    assert done.returncode == 0, done.stderr
    found = [float(one) for one in re.findall(r"epoch \d accuracy ([0-9.]+) %", done.stdout)]
    assert len(found) == 3 and found[-1] > 50
    assert "is rank 1 of 2" in done.stdout


def test_what_the_endpoint_means(monkeypatch: pytest.MonkeyPatch) -> None:
    from msdu._torchrun import url_of

    monkeypatch.delenv("MSDU_RENDEZVOUS", raising=False)
    assert url_of("node0") == "tcp://node0:29400"
    assert url_of("node0:7,node1:8") == "tcp://node0:7,node1:8"
    assert url_of("file:///shared") == "file:///shared"
    with pytest.raises(ValueError, match="--rdzv-endpoint"):
        url_of("")
    monkeypatch.setenv("MSDU_RENDEZVOUS", "redis://store:1")
    assert url_of("") == "redis://store:1"
