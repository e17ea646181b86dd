# SPDX-License-Identifier: Apache-2.0
"""The laboratory bench/lab: rates, counters, statuses, and that nothing of it is left behind.

test_lab.py [--trainer FILE]: with the C trainer, also a real job over Gloo. Status 77 where the
lab cannot run. MSDU_TEST_TIMED=1 also judges that links reach their rate, for a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "bench" / "lab"
STREAM = str(Path(__file__).resolve().with_name("lab_stream.py"))
PATIENCE_S = 100
NOBODY = 65534
sys.dont_write_bytecode = True
sys.path.insert(0, str(LAB))
os.environ["PATH"] += ":/usr/sbin:/sbin"  # where users do not look for ip and tc

import network
import pace
import quota

trainer: str | None = None


def words(*arguments: str) -> list[str]:
    """The command line of a lab."""
    return [sys.executable, "-B", str(LAB), *arguments]


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a lab to its end."""
    return subprocess.run(
        words(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def machine() -> dict[str, list[str]]:
    """What the lab must leave as it was: interfaces, queues, named namespaces, mounts."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )

    return {
        "interfaces": sorted(line.partition(" ")[0] for line in lines("ip", "-br", "link")),
        "queues": sorted(line.split(" refcnt ")[0] for line in lines("tc", "qdisc", "show")),
        "namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "sys": [line for line in Path("/proc/mounts").read_text().split("\n") if "sysfs" in line],
    }


class Pure(unittest.TestCase):
    """What needs no rights."""

    def test_rates_are_read(self) -> None:
        """As tc writes them."""
        self.assertEqual(network.parse_rate("200mbit"), 2e8)
        self.assertEqual(network.parse_rate("2.5Gbit"), 2.5e9)
        self.assertEqual(network.parse_rate("100kbit"), 1e5)
        self.assertIsNone(network.parse_rate("none"))
        for bad in ("", "5", "mbit", "-1mbit", "1 mbit", "99kbit", "101gbit", "nan", "1e3mbit"):
            with self.assertRaises(ValueError, msg=bad):
                network.parse_rate(bad)

    def test_buckets_hold_frames_and_stay_small(self) -> None:
        """From 1 Mbit/s to 100 Gbit/s, for common frame sizes."""
        for mtu in (1500, 9000):
            for rate in (1e6, 1e7, 1e8, 1e9, 1e10, 1e11):
                burst, queue = network.default_burst(rate, mtu), network.default_queue(rate, mtu)
                self.assertGreaterEqual(burst, 2 * (mtu + 14))
                self.assertLessEqual(burst, max(2 * (mtu + 14), rate / 8 * 0.0021))
                self.assertGreaterEqual(queue, 64 * (mtu + 14))
                self.assertLessEqual(queue, 4 << 20)

    def test_bad_command_lines_are_refused(self) -> None:
        """With status 2, the name of the option and what is allowed."""
        for bad, named in (
            (["--rate", "5", "--", "true"], "--rate"),
            (["--ranks", "0", "--", "true"], "1 .. 250"),
            (["--mtu", "100", "--", "true"], "--mtu 100"),
            (["--delay", "-1", "--", "true"], "--delay -1"),
            (["--cpus", "x", "--", "true"], "--cpus"),
            (["--cpus", "99999", "--", "true"], "99999"),
            (["--env", "x", "--", "true"], "NAME=VALUE"),
            (["--ranks", "2"], "no command"),
            (["--hosts", "0", "--", "true"], "--hosts 0"),
            (["--per-host", "0", "--", "true"], "--per-host 0"),
            (["--ranks", "4", "--hosts", "2", "--", "true"], "--per-host"),
            (["--ranks", "4", "--per-host", "2", "--", "true"], "--per-host"),
            (["--speeds", "1,0", "--", "true"], "--speeds"),
            (["--speeds", "1,2", "--", "true"], "0.01 .. 1"),
            (["--hosts", "2", "--speeds", "1,1,1", "--", "true"], "do not divide 2 ranks"),
            (["--bursts", "x", "--", "true"], "--bursts"),
            (["--cpu-share", "1,-1", "--", "true"], "--cpu-share"),
            (["--cpu-share", "1,1,1", "--", "true"], "do not divide 2 ranks"),
            (["--rate", "1mbit,5", "--", "true"], "--rate"),
            (["--hosts", "2", "--per-host", "3", "--rate", "1mbit,2mbit,3mbit", "--", "true"],
             "do not divide 2 hosts"),
        ):
            done = lab(*bad)
            self.assertEqual(done.returncode, 2, bad)
            self.assertIn(named, done.stderr)

    def test_bursts_follow_from_the_seed(self) -> None:
        """A tenth of the time, a fifth of the speed; each rank has its own; none without a seed."""
        times = [0.05 * i for i in range(100000)]
        first = [pace.Speed(0, 0.5, 7).at(t) for t in times[:3]]
        speed, same, other = pace.Speed(0, 0.5, 7), pace.Speed(0, 0.5, 7), pace.Speed(1, 0.5, 7)
        speeds = [speed.at(t) for t in times]
        self.assertEqual(speeds, [same.at(t) for t in times])
        self.assertEqual(speeds[:3], first)
        self.assertNotEqual(speeds, [other.at(t) for t in times])
        self.assertEqual(set(speeds), {0.5, 0.1})
        self.assertAlmostEqual(speeds.count(0.1) / len(speeds), 0.1, delta=0.02)
        self.assertEqual(pace.Speed(0, 0.5).at(1e6), 0.5)

    def test_longer_bursts_are_the_same_ones(self) -> None:
        """In time that runs slower."""
        plain, scaled = pace.Speed(2, 1, 3), pace.Speed(2, 1, 3, scale=4)
        for i in range(4000):
            self.assertEqual(plain.at(i / 4), scaled.at(i))

    def test_quotas_are_what_the_kernel_takes(self) -> None:
        """5 ms, longer where the quota would be below 1 ms; the share stays what it was."""
        self.assertEqual(quota.quota_of(0.25), (1250, 5000))
        self.assertEqual(quota.quota_of(2), (10000, 5000))
        self.assertEqual(quota.quota_of(0.1), (1000, 10000))
        self.assertEqual(quota.parse_shares("1,.5,0"), (1, 0.5, 0))
        with tempfile.TemporaryDirectory() as folder:
            for name in ("cpu.max", "cpu.cfs_period_us", "cpu.cfs_quota_us"):
                Path(folder, name).touch()
            for is_unified in (False, True):
                quota._limit(Path(folder), 0.5, is_unified)
            self.assertEqual(Path(folder, "cpu.max").read_text(), "2500 5000")
            self.assertEqual(Path(folder, "cpu.cfs_period_us").read_text(), "5000")
            self.assertEqual(Path(folder, "cpu.cfs_quota_us").read_text(), "2500")

    def test_speeds_repeat(self) -> None:
        """Where there are fewer than ranks."""
        bases = [speed.base for speed in pace.speeds_of(4, (1, 0.25), None)]
        self.assertEqual(bases, [1, 0.25, 1, 0.25])

    @unittest.skipUnless(shutil.which("ip") and shutil.which("tc"), "no iproute2")
    def test_where_it_is_refused_it_says_so(self) -> None:
        """In one line, with the status for skipped."""
        code = (
            "import errno, os, runpy, sys\n"
            "sys.path.insert(0, %r); sys.argv = ['lab', '--', 'true']\n"
            "import kernel\n"
            "def refuse(flags): raise OSError(errno.EPERM, os.strerror(errno.EPERM))\n"
            "kernel.unshare = refuse\n"
            "runpy.run_path(%r, run_name='__main__')"
        )
        python = [sys.executable, "-B", "-c", code % (str(LAB), str(LAB))]
        done = subprocess.run(
            python, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("needs root", done.stderr)
        self.assertIn("not permitted", done.stderr)


class Lab(unittest.TestCase):
    """Labs with ranks; the machine is compared before and after each test."""

    def setUp(self) -> None:
        """A folder, and what must not change."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.json = os.path.join(folder.name, "out.json")
        before = machine()
        self.addCleanup(lambda: self.assertEqual(before, machine()))

    def records(self) -> dict[str, Any]:
        """What --json wrote."""
        records: dict[str, Any] = json.loads(Path(self.json).read_text())
        return records

    def run_lab(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """A lab with records and logs in the folder and the given exit status."""
        done = lab("--json", self.json, "--output-dir", self.folder, *arguments)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def log(self, rank: int) -> str:
        """Output of a rank."""
        return Path(self.folder, f"rank{rank}.log").read_text()

    def stream(self, seconds: float, *arguments: str) -> list[dict[str, float]]:
        """What each rank of a ring of streams printed."""
        python = [sys.executable, "-B", STREAM, str(seconds), "5001"]
        self.run_lab("--timeout", "90", *arguments, "--", *python)
        ranks = range(self.records()["ranks"])
        return [json.loads(self.log(rank).splitlines()[-1]) for rank in ranks]


class Ranks(Lab):
    """Processes: environment, output, statuses."""

    def test_ranks_know_their_place(self) -> None:
        """Variables, own interfaces only, output where it belongs."""
        script = (
            'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MSDU_RENDEZVOUS $MSDU_INTERFACE '
            '$GLOO_SOCKET_IFNAME $TAG" $(ls /sys/class/net) $(nproc); test ! -t 0'
        )
        arguments = ("--ranks", "3", "--env", "TAG=n%r", "--cpus", "0")
        done = self.run_lab(*arguments, "--", "sh", "-c", script)
        for rank in range(3):
            wanted = f"{rank} 3 0 10.77.0.1 tcp://10.77.0.1:29600 eth0 eth0 n{rank} eth0 lo 1"
            self.assertEqual(self.log(rank).strip(), wanted)
        self.assertIn("0 3 0 10.77", done.stdout)
        self.assertNotIn("1 3 0 10.77", done.stdout)

    def test_ranks_of_a_host_share_it(self) -> None:
        """Places as torchrun names them; one network, and name, for each host."""
        script = (
            'echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $(hostname) '
            '$(readlink /proc/self/ns/net)"'
        )
        self.run_lab("--hosts", "2", "--per-host", "2", "--", "sh", "-c", script)
        found = [self.log(rank).split() for rank in range(4)]
        self.assertEqual(
            [" ".join(words[:6]) for words in found],
            ["0 4 0 2 0 10.77.0.1", "1 4 1 2 0 10.77.0.1", "2 4 0 2 1 10.77.0.2",
             "3 4 1 2 1 10.77.0.2"],
        )  # fmt: skip
        networks = [words[6] for words in found]
        self.assertEqual(networks[0], networks[1])
        self.assertEqual(networks[2], networks[3])
        self.assertNotEqual(networks[0], networks[2])

    def test_a_slow_rank_computes_for_a_part_of_the_time(self) -> None:
        """With everything that it started; the others are not held up."""
        busy = "import time\nwhile time.process_time() < 0.4: pass"
        arguments = ("--hosts", "1", "--per-host", "2", "--speeds", "1,.2")
        self.run_lab(*arguments, "--", "sh", "-c", f'{sys.executable} -S -c "{busy}"; true')
        even, slow = self.records()["runs"][0]["per_rank"]
        self.assertEqual(self.records()["speeds"], [1, 0.2])
        self.assertGreaterEqual(slow["cpu_seconds"], 0.4)
        self.assertGreater(slow["seconds"], 0.4 / 0.2 * 0.9)
        self.assertGreater(slow["seconds"], even["seconds"])

    def test_slow_ranks_are_stopped_as_others_are(self) -> None:
        """At the timeout, while most of their time they do not run."""
        arguments = ("--ranks", "2", "--speeds", ".02,.5", "--timeout", "1")
        self.run_lab(*arguments, "--", "sleep", "1000", status=124)
        statuses = [rank["exit_status"] for rank in self.records()["runs"][0]["per_rank"]]
        self.assertEqual(statuses, [143, 143])

    def share(self, shares: str, *command: str) -> int | None:
        """Run two ranks with shares of a core; the lab's process, none where it has no groups."""
        arguments = ("--json", self.json, "--output-dir", self.folder, "--ranks", "2")
        process = subprocess.Popen(
            words(*arguments, "--cpu-share", shares, "--", *command), stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True,
        )
        _, told = process.communicate(timeout=PATIENCE_S)
        if process.returncode == 77:
            self.assertRegex(told, r"^lab: --cpu-share.*\n$")
            return None
        self.assertEqual(process.returncode, 0, told)
        return process.pid

    def groups(self) -> list[str]:
        """Control groups of labs."""
        return [path.name for path in Path("/sys/fs/cgroup").glob("**/msdu-lab-*-*")]

    def test_a_share_of_a_core_is_processor_time(self) -> None:
        """A rank that computes gets its share, with what it started. Nothing is left of it."""
        busy = "import time\nwhile time.process_time() < 0.3: pass"
        shell = f'cat /proc/self/cgroup; {sys.executable} -S -c "{busy}"; true'
        lab_pid = self.share("0,.2", "sh", "-c", shell)
        if lab_pid is None:
            self.skipTest("no control groups, or not root")
        even, slow = self.records()["runs"][0]["per_rank"]
        self.assertEqual(self.records()["cpu_share"], [0, 0.2])
        self.assertNotIn("msdu-lab-", self.log(0))
        self.assertIn(f"msdu-lab-{lab_pid}-1\n", self.log(1))
        self.assertGreaterEqual(slow["cpu_seconds"], 0.3)
        self.assertGreater(slow["seconds"], 0.3 / 0.2 * 0.9)
        self.assertGreater(slow["seconds"], even["seconds"])
        self.assertEqual([name for name in self.groups() if f"-{lab_pid}-" in name], [])

    def test_the_next_lab_removes_what_a_killed_one_left(self) -> None:
        """Only that can leave a group behind."""
        process = subprocess.Popen(
            words("--ranks", "2", "--cpu-share", ".5", "--", "sh", "-c", "echo; exec sleep 1000"),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        is_ready = process.stdout.readline() == b"\n"
        process.kill()
        process.wait()
        process.stdout.close()
        if not is_ready:
            self.skipTest("no control groups, or not root")
        self.assertEqual(len([name for name in self.groups() if f"-{process.pid}-" in name]), 2)
        group = next(Path("/sys/fs/cgroup").glob(f"**/msdu-lab-{process.pid}-1"))
        files = [group / name for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")]
        limits = " ".join(file.read_text().strip() for file in files if file.exists())
        self.assertEqual(limits, "2500 5000")
        self.share("1", "true")
        self.assertEqual([name for name in self.groups() if f"-{process.pid}-" in name], [])

    def test_hosts_have_names_of_their_own(self) -> None:
        """A rank reaches another by the name that the other has for itself (torchft does)."""
        python = "import socket; print(socket.gethostbyname(socket.gethostname()))"
        self.run_lab("--ranks", "2", "--", sys.executable, "-c", python)
        self.assertEqual([self.log(rank).strip() for rank in range(2)], ["10.77.0.1", "10.77.0.2"])

    def test_first_failure_is_the_status(self) -> None:
        """The others are stopped after the time of grace; the reason is shown."""
        script = 'test "$RANK" = 1 || exec sleep 1000; echo because; exit 3'
        done = self.run_lab("--ranks", "3", "--grace", "0.2", "--", "sh", "-c", script, status=3)
        self.assertIn("[1] because", done.stderr)
        statuses = [rank["exit_status"] for rank in self.records()["runs"][0]["per_rank"]]
        self.assertEqual(statuses, [143, 3, 143])

    def test_a_killed_rank_counts_as_in_a_shell(self) -> None:
        """128 and the signal."""
        self.run_lab("--ranks", "1", "--", "sh", "-c", "kill -KILL $$", status=137)

    def test_an_unknown_command_is_named(self) -> None:
        """With a shell's status."""
        done = self.run_lab("--ranks", "1", "--", "no-such-program", status=127)
        self.assertIn("no-such-program", done.stdout)

    def test_timeout_stops_all(self) -> None:
        """Those that do not heed SIGTERM, too; earlier runs stay in the records."""
        script = "trap '' TERM; test -e first && while :; do sleep 1; done; touch first"
        arguments = ("--ranks", "1", "--repeat", "3", "--timeout", "2")
        here = os.path.join(self.folder, "first")
        self.run_lab(*arguments, "--", "sh", "-c", script.replace("first", here), status=124)
        self.assertEqual([run["exit_status"] for run in self.records()["runs"]], [0, 124])

    def test_records_cannot_be_lost_late(self) -> None:
        """A place that cannot be written is told before anything runs."""
        done = lab("--json", f"{self.folder}/none/x.json", "--", "touch", f"{self.folder}/ran")
        self.assertEqual(done.returncode, 1)
        self.assertIn("none/x.json", done.stderr)
        self.assertFalse(os.path.exists(f"{self.folder}/ran"))


class Links(Lab):
    """What the links do and what is counted."""

    def test_streams_keep_to_the_rate(self) -> None:
        """Both directions at once; counted bytes are the payload and its headers."""
        streams = self.stream(3, "--ranks", "2", "--rate", "20mbit")
        ranks = self.records()["runs"][0]["per_rank"]
        for stream, rank in zip(streams, ranks):
            share = stream["received"] * 8 / stream["seconds"] / 20e6
            self.assertLessEqual(share, 1.05)
            if os.environ.get("MSDU_TEST_TIMED"):
                self.assertGreaterEqual(share, 0.9)
            for counted, payload in (("tx", "sent"), ("rx", "received")):
                self.assertGreater(rank[f"{counted}_bytes"], stream[payload])
                self.assertLess(rank[f"{counted}_bytes"], stream[payload] * 1.12)
                self.assertGreater(rank[f"interface_{counted}_bytes"], stream[payload])
                self.assertLessEqual(
                    rank[f"interface_{counted}_bytes"], rank[f"{counted}_bytes"] + 1
                )
        self.assertAlmostEqual(ranks[0]["tx_bytes"] / ranks[1]["rx_bytes"], 1, delta=0.01)

    def test_hosts_may_have_rates_of_their_own(self) -> None:
        """A stream is as fast as the slower of its two links."""
        streams = self.stream(2, "--ranks", "3", "--rate", "40mbit,40mbit,4mbit")
        self.assertEqual(self.records()["rate_bits"], [4e7, 4e7, 4e6])
        self.assertEqual(self.records()["rate"], "40mbit,40mbit,4mbit")
        shares = [stream["received"] * 8 / stream["seconds"] / 4e6 for stream in streams]
        self.assertLessEqual(max(shares[0], shares[2]), 1.1)  # from and to host 2
        if os.environ.get("MSDU_TEST_TIMED"):
            self.assertGreater(shares[1], 8)

    def test_many_to_one_share_its_link(self) -> None:
        """The receiver's end is shaped, not only the senders'."""
        script = (
            "import os, socket, time\n"
            "rank = int(os.environ['RANK']); begin = time.monotonic(); total = 0\n"
            "if rank:\n"
            "    while True:\n"
            "        try: s = socket.create_connection(('10.77.0.1', 5001)); break\n"
            "        except ConnectionRefusedError: time.sleep(0.05)\n"
            "    s.sendall(bytes(1000000)); s.shutdown(1); s.recv(1)\n"
            "else:\n"
            "    with socket.create_server(('10.77.0.1', 5001)) as listener:\n"
            "        streams = [listener.accept()[0] for _ in range(3)]\n"
            "    for s in streams:\n"
            "        while data := s.recv(65536): total += len(data)\n"
            "    assert total == 3000000\n"
            "    assert time.monotonic() - begin >= total * 8 / 20e6 / 1.05\n"
        )
        arguments = ("--ranks", "4", "--rate", "20mbit", "--timeout", "90")
        self.run_lab(*arguments, "--", sys.executable, "-B", "-c", script)
        ranks = self.records()["runs"][0]["per_rank"]
        self.assertGreater(ranks[0]["rx_bytes"], 3000000)
        self.assertGreater(sum(rank["tx_bytes"] for rank in ranks[1:]), 3000000)

    def test_bytes_inside_a_host_are_counted_apart(self) -> None:
        """Rank 0 sends to 1 on its host and to 2 on the other; the rate holds between them only."""
        script = (
            "import os, socket, time\n"
            "rank = int(os.environ['RANK'])\n"
            "def send(address, port, count):\n"
            "    while True:\n"
            "        try: s = socket.create_connection((address, port)); break\n"
            "        except ConnectionRefusedError: time.sleep(0.05)\n"
            "    s.sendall(bytes(count)); s.shutdown(1); s.recv(1)\n"
            "if rank == 0:\n"
            "    send('10.77.0.1', 5001, 4000000); send('10.77.0.2', 5002, 500000)\n"
            "if rank in (1, 2):\n"
            "    with socket.create_server(('', 5000 + rank)) as listener:\n"
            "        s = listener.accept()[0]\n"
            "        while s.recv(65536): pass\n"
        )
        arguments = ("--hosts", "2", "--per-host", "2", "--rate", "10mbit", "--timeout", "90")
        done = self.run_lab(*arguments, "--", sys.executable, "-B", "-c", script)
        first, second = self.records()["runs"][0]["per_host"]
        self.assertTrue(4000000 < first["inside_bytes"] < 4400000, first)
        self.assertTrue(500000 < first["tx_bytes"] < 600000, first)
        self.assertTrue(500000 < second["rx_bytes"] < 600000, second)
        self.assertEqual(second["inside_bytes"], 0)
        self.assertNotIn("tx_bytes", self.records()["runs"][0]["per_rank"][0])
        self.assertRegex(done.stdout, r"(?m)^host +sent MB .* inside MB inside/sent$")
        self.assertRegex(done.stdout, r"(?m)^   0 +0\.5\d\d .* 4\.\d\d\d +[78]\.\d\d$")

    def test_delay_is_both_ways(self) -> None:
        """No round trip is shorter than twice the delay; frames arrive whole and in order."""
        self.assertGreaterEqual(self.stream(0.001, "--ranks", "2", "--delay", "15")[0]["sent"], 1)
        python = [sys.executable, "-B", STREAM, "0", "5001"]
        self.run_lab("--ranks", "2", "--delay", "15", "--rate", "100mbit", "--", *python)
        self.assertGreaterEqual(json.loads(self.log(0))["rtt_s"], 0.030)

    def test_runs_are_counted_apart(self) -> None:
        """Each run's bytes are its own, and idle links carry nothing."""
        python = [sys.executable, "-B", STREAM, "0", "5001"]
        self.run_lab("--ranks", "3", "--repeat", "2", "--live", "--", *python)
        runs = self.records()["runs"]
        self.assertEqual(len(runs), 2)
        for run in runs:
            sent = [rank["tx_bytes"] for rank in run["per_rank"]]
            self.assertTrue(0 < sent[0] < 10000 and 0 < sent[1] < 10000, sent)
            self.assertLess(sent[2], 200)  # what ARP asked of all

    def test_a_job_over_gloo(self) -> None:
        """The C trainer: the library's count of bytes is found on the links."""
        if trainer is None:
            self.skipTest("no trainer with Gloo given")
        for name, rows in (("train", 256), ("t10k", 64)):
            images = struct.pack(">iiii", 0x803, rows, 8, 8) + os.urandom(64 * rows)
            labels = struct.pack(">ii", 0x801, rows) + bytes(i % 10 for i in range(rows))
            Path(self.folder, f"{name}-images-idx3-ubyte").write_bytes(images)
            Path(self.folder, f"{name}-labels-idx1-ubyte").write_bytes(labels)
        result = os.path.join(self.folder, "result-%r.json")
        command = [trainer, "--data", self.folder, "--epochs", "2", "--json", result]
        settings = ("--env", "MSDU_DOMAIN=gradient", "--env", "MSDU_WIRE=float32")
        self.run_lab("--ranks", "4", "--rate", "100mbit", *settings, "--", *command)
        for rank in self.records()["runs"][0]["per_rank"]:
            own = json.loads(Path(self.folder, f"result-{rank['rank']}.json").read_text())
            self.assertGreater(rank["tx_bytes"], own["bytes_per_rank"])
            self.assertLess(rank["tx_bytes"], own["bytes_per_rank"] * 1.2 + 100000)


class End(Lab):
    """Nothing is left, however a lab ends."""

    def end(self, how: signal.Signals | None, *arguments: str) -> int:
        """Start a lab whose ranks leave orphans behind, end it, wait until all are gone.

        Every process of the lab inherits the writing end of a pipe: it reads as ended when the
        last of them is gone. Returns the lab's status.
        """
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        wait = "exec sleep 1000" if how is not None else "exit 0"
        script = f"setsid sleep 1000 & echo ready; {wait}"
        process = subprocess.Popen(
            words("--ranks", "2", "--rate", "10mbit", *arguments, "--", "sh", "-c", script),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(writing,),
        )
        os.close(writing)
        assert process.stdout is not None
        self.assertEqual(process.stdout.readline(), b"ready\n")
        if how is not None:
            process.send_signal(how)
        status = process.wait(PATIENCE_S)
        process.stdout.close()
        gone = select.select([reading], [], [], PATIENCE_S)[0]
        self.assertTrue(gone and os.read(reading, 1) == b"", "a process was left")
        os.close(reading)
        return status

    def test_after_the_command(self) -> None:
        """Orphans of the ranks go with the run."""
        self.assertEqual(self.end(None), 0)

    def test_after_signals(self) -> None:
        """Reported as in a shell."""
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.assertEqual(self.end(how, "--json", self.json), 128 + how)
            self.assertEqual(self.records()["runs"][0]["exit_status"], 128 + how)

    def test_a_signal_that_python_loses(self) -> None:
        """It arrives in __del__, where nothing that is raised comes through; the lab ends yet."""
        self.assertEqual(self.end_of_lost(), 128 + signal.SIGTERM)

    def end_of_lost(self) -> int:
        """Status of a lab in this process's child, whose signal is lost while ranks run."""
        code = f"""
import sys; sys.path.insert(0, {str(LAB)!r})
import os, signal, types
import job, kernel
class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass
kernel.raise_when_stopped()
one = job.Job.__new__(job.Job)
turns = []
def wait(seconds):
    turns.append(seconds)
    if len(turns) == 1:
        lost = Lost()
        del lost
    if len(turns) > 3:
        os._exit(1)
one.__dict__.update(
    _plan=types.SimpleNamespace(timeout_s=None, grace_s=5), _started=0.0, _failed_at=float("inf"),
    status=None, ranks=[types.SimpleNamespace(status=None)], _wait=wait, _stop=lambda: None,
    _close=lambda: None)
one.watch()
os._exit(one.status)
"""
        return subprocess.run(
            [sys.executable, "-B", "-c", code], stderr=subprocess.DEVNULL, timeout=PATIENCE_S
        ).returncode

    def test_after_sigkill(self) -> None:
        """The kernel cleans up, the relay too."""
        self.assertEqual(self.end(signal.SIGKILL, "--delay", "1"), -signal.SIGKILL)


@unittest.skipUnless(os.geteuid() == 0, "for root, who can become another user")
class User(Lab):
    """Without root, where the kernel lets users make namespaces."""

    def test_a_user_has_a_lab_as_well(self) -> None:
        """Else it says that it needs root; its files belong to the user."""
        os.chmod(self.folder, 0o777)
        copy = os.path.join(self.folder, "lab")
        shutil.copytree(LAB, copy, ignore=shutil.ignore_patterns("__pycache__"))
        reachable = self.as_user("/usr/bin/python3", "-B", os.path.join(copy, "__main__.py"), "-h")
        if reachable.returncode != 0:
            self.skipTest("another user reaches no Python or not this TMPDIR")
        arguments = ("--ranks", "2", "--rate", "20mbit", "--delay", "1", "--json", self.json)
        script = f"cat /sys/class/net/eth0/operstate > {self.folder}/state$RANK"
        done = self.as_user("/usr/bin/python3", "-B", copy, *arguments, "--", "sh", "-c", script)
        if self.as_user("unshare", "-Urnm", "mount", "-t", "sysfs", "x", "/sys").returncode != 0:
            self.assertEqual(done.returncode, 77, done.stderr)
            self.assertIn("needs root", done.stderr)
            return
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(Path(self.folder, "state1").read_text(), "up\n")
        self.assertEqual(os.stat(self.json).st_uid, NOBODY)

    def as_user(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as nobody."""
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd="/",
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
        )


def main() -> int:
    """Status: 1 for a failure, 77 if no lab can be made here."""
    global trainer
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    trainer = options.trainer
    probe = lab("--ranks", "1", "--rate", "10mbit", "--", "true")
    suites = ["Pure"] if probe.returncode == 77 else ["Pure", "Ranks", "Links", "End", "User"]
    names = [name for name in options.tests if name.partition(".")[0] in suites]
    done = unittest.main(argv=["test_lab", *(names or suites)], exit=False)
    if not done.result.wasSuccessful():
        return 1
    if probe.returncode == 77:
        print(probe.stderr.strip())
    return probe.returncode


if __name__ == "__main__":
    sys.exit(main())
