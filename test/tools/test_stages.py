#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`msdu plan --stages`: what it prints and writes, what it refuses, and that torch reads its orders.

    test_stages.py --msdu build/bin/msdu
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DRAW = ROOT / "bench" / "overlap" / "stages_draw.py"
MSDU = ""


def layer(index: int, **more: Any) -> dict[str, Any]:
    """One of equal layers: 10 and 20 ms, 1 MiB of output."""
    return {"name": f"h.{index}", "forward_us": 10000, "backward_us": 20000,
            "tensors": [{"name": f"w.{index}", "count": 1 << 20}],
            "output_bytes": 1 << 20, "kept_bytes": 4 << 20, **more}


def profile(layers: int = 24, **more: Any) -> dict[str, Any]:
    return {"format": "msdu-profile-1", "name": "even",
            "layers": [layer(i) for i in range(layers)], **more}


def machines(*speeds: float, **more: Any) -> dict[str, Any]:
    """m0, m1, ... on links of 100 Mbit/s."""
    return {"format": "msdu-machines-1",
            "machines": [{"name": f"m{i}", "speed": s} for i, s in enumerate(speeds)],
            "links": {"rate": "100mbit", "latency_us": 100}, **more}


class Case(unittest.TestCase):
    """A folder with the two files."""

    def setUp(self) -> None:
        self.held = tempfile.TemporaryDirectory()
        self.folder = Path(self.held.name)
        self.addCleanup(self.held.cleanup)
        self.write("profile.json", profile())
        self.write("machines.json", machines(1, 1, 2, 4))

    def write(self, name: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text, encoding="utf-8")

    def plan(self, *options: str, status: int = 0, count: str = "16") -> str:
        """Output, or the one line of complaint."""
        done = subprocess.run(
            [MSDU, "plan", "--stages", "machines.json", "--profile", "./profile.json",
             "--micro-batches", count, *options],
            check=False, capture_output=True, text=True, timeout=100, cwd=self.folder)
        self.assertEqual(done.returncode, status, done.stderr)
        if status:
            self.assertEqual(done.stdout, "")
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr if status else done.stdout

    def record(self, *options: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.plan("--json", *options, **more))
        return found


class Says(Case):
    """What is printed and written."""

    def test_text(self) -> None:
        text = self.plan()
        for word in ("stage  rank  machine", "m3", "% of 100 Mbit/s", "16 micro-batches: step",
                     "at least", "torch with equal layers on all machines: 1F1B",
                     "torch with these cuts"):
            self.assertIn(word, text)

    def test_record(self) -> None:
        plan = self.record()
        self.assertEqual(plan["stages"][0]["first_layer"], "h.0")
        self.assertEqual(plan["stages"][-1]["last_layer"], "h.23")
        used = [stage["machine"] for stage in plan["stages"]]
        self.assertEqual(sorted(used + plan["unused"]), ["m0", "m1", "m2", "m3"])
        self.assertGreaterEqual(plan["step_us"], plan["bound_us"])
        self.assertGreater(plan["equal_1f1b_us"] / plan["step_us"], 2)
        ends = [action["end_us"] for rank in plan["ranks"] for action in rank["actions"]]
        self.assertAlmostEqual(max(ends), plan["step_us"], 3)
        self.assertEqual(len(ends), 2 * 16 * len(used))

    def test_memory_and_optimizer(self) -> None:
        """4 MiB of parameters a layer: 16 MiB with Adam, 12 with SGD."""
        self.write("machines.json", machines(1))
        adam = self.record()["stages"][0]
        sgd = self.record("--optimizer", "sgd")["stages"][0]
        self.assertEqual(adam["memory_bytes"] - sgd["memory_bytes"], 24 * 4 * 2**20)
        self.assertEqual(adam["memory_bytes"], 24 * 16 * 2**20 + adam["holds"] * 24 * 4 * 2**20)
        self.assertEqual(adam["holds"], 1)

    def test_memory_makes_more_stages(self) -> None:
        some = machines(1, 1, 1, 1)
        for machine in some["machines"]:
            machine["memory"] = "200MiB"
        self.write("machines.json", some)
        plan = self.record()
        self.assertEqual(len(plan["stages"]), 4)
        for stage in plan["stages"]:
            self.assertLessEqual(stage["memory_bytes"], 200 * 2**20)

    def test_times_of_machines_own(self) -> None:
        """The last machine is slow with the first half of the model only."""
        own = profile()
        for each in own["layers"][:12]:
            each["forward_us"] *= 100
        self.write("own.json", own)
        some = machines(1, 1)
        some["machines"][0]["profile"] = "./own.json"
        self.write("machines.json", some)
        self.assertEqual(self.record()["stages"][0]["machine"], "m1")

    def test_pairs_of_machines(self) -> None:
        """Only m0 and m2 have a fast link, so m1 stays out."""
        some = machines(1, 1, 1)
        some["links"] = {"rate": "1mbit", "pairs": [{"between": ["m0", "m2"], "rate": "10gbit"}]}
        self.write("machines.json", some)
        self.assertEqual(self.record()["unused"], ["m1"])

    def test_micro_batches_are_found(self) -> None:
        self.write("profile.json",
                   {**profile(), "samples": 4,
                    "layers": [layer(i, fixed_forward_us=500) for i in range(24)]})
        best = self.record("--batch", "96", count="auto")
        self.assertEqual(96 % best["micro_batches"], 0)
        for count in ("1", "4", "96"):
            self.assertLessEqual(best["step_us"], self.record("--batch", "96", count=count)["step_us"])

    def test_modules(self) -> None:
        plan = self.record("--modules", "modules.json")
        modules = json.loads((self.folder / "modules.json").read_text(encoding="utf-8"))
        names = [name for part in modules["module_fqns_per_model_part"] for name in part]
        self.assertEqual(names, [f"h.{i}" for i in range(24)])
        self.assertEqual(modules["layers_per_stage"],
                         [len(part) for part in modules["module_fqns_per_model_part"]])
        self.assertEqual(modules["machines"], [rank["machine"] for rank in plan["ranks"]])

    def test_picture(self) -> None:
        plan = self.plan("--json", "--two-stages", "--split-backward")
        for name in ("a.svg", "b.svg"):
            subprocess.run([sys.executable, "-B", str(DRAW), "--out", name], check=True, input=plan,
                           text=True, timeout=60, cwd=self.folder)
        picture = (self.folder / "a.svg").read_text(encoding="utf-8")
        self.assertEqual(picture, (self.folder / "b.svg").read_text(encoding="utf-8"))
        boxes = [e for e in xml.etree.ElementTree.fromstring(picture).iter() if e.tag.endswith("rect")]
        actions = sum(len(rank["actions"]) for rank in json.loads(plan)["ranks"])
        self.assertGreater(len(boxes), actions)
        (self.folder / "plan.json").write_text(plan, encoding="utf-8")
        subprocess.run([sys.executable, "-B", str(DRAW), "plan.json", "plan.json", "--out",
                        "two.svg"], check=True, timeout=60, cwd=self.folder)
        both = xml.etree.ElementTree.parse(self.folder / "two.svg").getroot().iter()
        twice = [e for e in both if e.tag.endswith("rect")]
        self.assertEqual(len(twice), len(boxes) + actions)
        done = subprocess.run([sys.executable, "-B", str(DRAW), "--out", "c.svg"], check=False,
                              input="[]", capture_output=True, text=True, timeout=60,
                              cwd=self.folder)
        self.assertIn("no output of msdu plan", done.stderr)


class Refuses(Case):
    """Bad input: one line with the file and the member."""

    def bad_machines(self, words: str, change: Any = None, text: str | None = None) -> None:
        some = machines(1, 2)
        if change is not None:
            change(some)
        self.write("machines.json", some if text is None else text)
        self.assertIn(f"machines.json: {words}", self.plan(status=2))

    def test_machines(self) -> None:
        def first(**more: Any) -> Any:
            return lambda some: some["machines"][0].update(more)

        def links(**more: Any) -> Any:
            return lambda some: some["links"].update(more)

        self.bad_machines("machines: two are called 'm1'", first(name="m1"))
        self.bad_machines("machine 'm0': speed is no number in 1e-06", first(speed=0))
        self.bad_machines("machine 'm0': speed is no number", first(speed="fast"))
        self.bad_machines("machine 'm0': memory is no size above 0", first(memory="0GiB"))
        self.bad_machines("machine 'm0': memory is no size", first(memory="16GX"))
        self.bad_machines("machine 'm0': rate is none: such as", first(rate="100"))
        self.bad_machines("machine 'm0': unknown member 'sped'", first(sped=2))
        self.bad_machines("machines: number 0 has no name", first(name="a b"))
        self.bad_machines("links: unknown member 'ratte'", links(ratte="1gbit"))
        self.bad_machines("links: rate is none", links(rate=5))
        self.bad_machines("links: latency_us is no number", links(latency_us=-1))
        self.bad_machines("links: pairs is no array", links(pairs={}))
        self.bad_machines("links: pairs: number 0: between: no machine 'x'",
                          links(pairs=[{"between": ["m0", "x"]}]))
        self.bad_machines("links: pairs: number 0: between is not an array of two",
                          links(pairs=[{"between": ["m0"]}]))
        self.bad_machines("links: pairs: number 0: between 'm0' and itself",
                          links(pairs=[{"between": ["m0", "m0"]}]))
        self.bad_machines("links: pairs: number 0: unknown member 'rat'",
                          links(pairs=[{"between": ["m0", "m1"], "rat": "1gbit"}]))
        self.bad_machines("links: rate is missing, and so are those of 'm0' and 'm1'",
                          lambda some: some.update(links={}))
        self.bad_machines("the file: unknown member 'link'", lambda some: some.update(link={}))
        self.bad_machines("machines is not an array of 1 to 128", lambda some: some.update(machines=[]))
        self.bad_machines('no JSON object with format "msdu-machines-1"', text="[]")
        self.bad_machines("no JSON: line 2", text="{\n:")

    def test_profile(self) -> None:
        for change, words in (
            ({"output_bytes": None}, "layer 'h.0': output_bytes is missing"),
            ({"output_bytes": -1}, "h.0: output_bytes is no number in 0"),
            ({"kept_bytes": "1"}, "h.0: kept_bytes is no number in 0"),
            ({"weight_us": 20001}, "layer 'h.0': weight_us 20001 is more than"),
            ({"fixed_forward_us": 10001}, "layer 'h.0': fixed_forward_us 10001 is more than"),
        ):
            first = {k: v for k, v in layer(0, **change).items() if v is not None}
            self.write("profile.json", {**profile(), "layers": [first, layer(1)]})
            self.assertIn(words, self.plan(status=2))
        some = machines(1, 1)
        some["machines"][0]["memory"] = "1GiB"
        self.write("machines.json", some)
        first = {k: v for k, v in layer(0).items() if k != "kept_bytes"}
        self.write("profile.json", {**profile(), "layers": [first, layer(1)]})
        self.assertIn("layer 'h.0': kept_bytes is missing, and machines have a memory",
                      self.plan(status=2))

    def test_profiles_of_machines(self) -> None:
        some = machines(1, 1)
        some["machines"][1]["profile"] = "./other.json"
        self.write("machines.json", some)
        self.assertIn("./other.json: No such file", self.plan(status=2))
        self.write("other.json", profile(23))
        self.assertIn("machine 'm1': profile: ./other.json has other layers", self.plan(status=2))

    def test_too_little_memory(self) -> None:
        some = machines(1, 2)
        for machine in some["machines"]:
            machine["memory"] = "20MiB"
        self.write("machines.json", some)
        self.assertIn("machines.json, even: stages: memory_bytes: layer 'h.0' needs",
                      self.plan(status=2))

    def test_micro_batches(self) -> None:
        self.assertIn("16 does not divide --batch 40", self.plan("--batch", "40", status=2))
        self.assertIn("needs --batch, and samples in the profile", self.plan(status=2, count="auto"))
        done = subprocess.run([MSDU, "plan", "--profile", "resnet50", "--csv", "x"], check=False,
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 2)
        self.assertIn("go with --stages", done.stderr)
        for options, words in (((), "--stages needs a --profile"),
                               (("--profile", "x"), "--stages needs --micro-batches")):
            done = subprocess.run([MSDU, "plan", "--stages", "x", *options], check=False,
                                  capture_output=True, text=True, timeout=100)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_files(self) -> None:
        self.assertIn("/nowhere/x.csv: No such file", self.plan("--csv", "/nowhere/x.csv", status=2))
        (self.folder / "machines.json").unlink()
        self.assertIn("machines.json: No such file", self.plan(status=2))


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch")
class Torch(Case):
    """The files are what torch's own reader takes. Its dry run knows no early receives: the order
    of ours is tested in test_stages_order.c."""

    def schedule(self, stages: int, ranks: int) -> Any:
        """An engine without stages or processes: enough to read an order."""
        from torch.distributed.pipelining import schedules

        class Engine(schedules._PipelineScheduleRuntime):
            def __init__(self) -> None:
                self.pp_group_size = ranks
                self._num_stages = stages
                self._n_microbatches = 16
                self._stages = []
                self.pipeline_order = {}
                self._defer_pp_recv = False

        return Engine()

    def check(self, *options: str) -> None:
        plan = self.record("--csv", "order.csv", "--csv-messages", "messages.csv", *options)
        shape = len(plan["stages"]), len(plan["ranks"])
        rank_of = {i: stage["rank"] for i, stage in enumerate(plan["stages"])}
        engine = self.schedule(*shape)
        engine._load_csv(str(self.folder / "order.csv"))
        self.assertEqual(engine.stage_index_to_group_rank, rank_of)
        for rank, row in enumerate(plan["ranks"]):
            mine = [f"{a['stage']}{a['kind']}{a['micro_batch']}" for a in row["actions"]]
            self.assertEqual([str(action) for action in engine.pipeline_order[rank]], mine)
        lowered = {rank: [a for a in actions if "SHARD" not in str(a) and "REDUCE" not in str(a)]
                   for rank, actions in engine.pipeline_order_with_comms.items()}
        engine.pipeline_order_with_comms = {rank: list(row) for rank, row in lowered.items()}
        engine._simulate()  # with torch's own receives nobody waits for ever
        engine = self.schedule(*shape)
        engine._load_csv(str(self.folder / "messages.csv"), format="compute_comms")
        self.assertEqual(engine.stage_index_to_group_rank, rank_of)
        for rank, actions in engine.pipeline_order_with_comms.items():
            self.assertEqual(sorted(map(str, actions)), sorted(map(str, lowered[rank])))

    def test_orders(self) -> None:
        self.check()
        self.check("--split-backward")
        self.check("--two-stages")
        self.check("--two-stages", "--split-backward")
        self.write("machines.json", machines(1, 1, 1, 1))
        self.check()
        self.check("--two-stages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--msdu", required=True)
    args, rest = parser.parse_known_args()
    MSDU = str(Path(args.msdu).resolve())
    unittest.main(argv=[sys.argv[0], *rest])
