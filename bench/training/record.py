# SPDX-License-Identifier: Apache-2.0
"""Records of runs: what fields they have, and who measured; store.py keeps them."""
from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

VERSION = 2  # 1: step_median_s is over single steps
Record = dict[str, Any]

# Field, its types, and what it says; bench/README.md explains the columns made of them.
FIELDS: dict[str, tuple[type, ...]] = {
    "version": (int,), "purpose": (str,), "model": (str,), "dataset": (str,), "method": (str,),
    "settings": (str,), "size": (str,), "optimizer": (str,), "seed": (int,), "lr": (float,),
    "weight_decay": (float,), "warmup": (float,), "batch": (int,), "ranks": (int,),
    "epochs": (int,), "samples": (int,), "samples_per_epoch": (int,), "steps": (int,),
    "parameters": (int,), "rate_mbit": (float,), "metric": (str,), "final": (float, type(None)),
    "final_train_loss": (float,), "eval_samples": (list,), "eval_loss": (list,),
    "eval_accuracy": (list,), "eval_train_loss": (list,), "eval_bytes": (list,),
    "eval_seconds": (list,), "bytes_per_rank": (int,), "bytes_total": (int,),
    "interface_bytes_per_rank": (int, type(None)), "wall_s": (float,),
    "step_median_s": (float,), "device": (str,), "threads": (int,), "cores": (int,),
    "load_before": (float,), "processor": (str,), "torch": (str,), "commit": (str,),
    "started": (str,), "key": (str,),
}
# What makes two runs the same run; the rest of a record came out of it or describes the machine.
IDENTITY = ("purpose", "model", "dataset", "method", "settings", "size", "optimizer", "seed", "lr",
            "weight_decay", "warmup", "batch", "ranks", "epochs", "samples_wanted", "steps_wanted",
            "evaluations", "test_samples", "rate_mbit", "device")


def key_of(identity: Record) -> str:
    """A short name of a run, the same whenever the same run is asked for."""
    text = json.dumps([identity[name] for name in IDENTITY])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{identity['model']}-{identity['method']}-s{identity['seed']}-{digest}"


def problems(record: Record) -> list[str]:
    """What is wrong with a record; empty if nothing. Methods may add fields of their own."""
    found = [f"{name} is missing" for name in FIELDS if name not in record]
    for name, kinds in FIELDS.items():
        value = record.get(name)
        if name in record and (isinstance(value, bool) or not isinstance(value, kinds)):
            found.append(f"{name} is {value!r}")
    lengths = {len(record[name]) for name in FIELDS
               if name.startswith("eval_") and isinstance(record.get(name), list)}
    if len(lengths) > 1:
        found.append("evaluation lists differ in length")
    for name, value in record.items():
        if isinstance(value, dict) or (isinstance(value, list) and any(
                isinstance(one, (dict, list)) for one in value)):
            found.append(f"{name} is nested")
    return found


def _processor() -> str:
    """The processor's name as the kernel gives it."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The project's commit, with -dirty if the tree has changes; "unknown" outside of git."""
    root = pathlib.Path(__file__).resolve().parents[2]
    try:
        shown = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"],
                               capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return shown.stdout.strip() or "unknown"


def machine() -> Record:
    """Where and with what was measured."""
    import torch

    return {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0],
            "processor": _processor(), "torch": str(torch.__version__), "commit": _commit()}
