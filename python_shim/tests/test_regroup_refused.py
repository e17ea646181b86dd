# SPDX-License-Identifier: Apache-2.0
"""Where ranks cannot come and go (setting ranks_least), and what is said of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import msdu
from msdu import _level


def attach(**settings: Any) -> msdu.Attachment:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return msdu.attach(model, optimizer, ranks_least=1, **settings)


@pytest.mark.parametrize("backend", ["local", "openmpi", "mpich"])
def test_backends_that_cannot_go_on_say_so(backend: str) -> None:
    with pytest.raises(msdu.Error) as caught:
        attach(backend=backend, ranks=2, rank=0)
    if caught.value.status == "MSDU_ERR_NOT_FOUND":
        pytest.skip(f"no module {backend} in this build")
    assert caught.value.status == "MSDU_ERR_UNSUPPORTED"
    assert f'backend "{backend}" cannot go on without a rank that was lost' in str(caught.value)


def test_scripts_that_are_not_modified(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('the script began')\n")
    words = [sys.executable, "-m", "msdu"]
    for more, environment in (
        (["--ranks-least", "1"], {}),
        ([], {"MSDU_RANKS_LEAST": "1"}),
    ):
        done = subprocess.run(
            [*words, *more, str(script)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 2
        assert "cannot follow ranks that come and go" in done.stderr


def test_the_hook_in_torchs_wrapper(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        with pytest.raises(msdu.Error, match="cannot follow ranks that come and go"):
            msdu.HookState(model, ranks_least=1)
    finally:
        dist.destroy_process_group()


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **what: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(what)
    monkeypatch.setitem(sys.modules, name, module)


def test_trainers_whose_world_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under agents that know nothing of each other each would train alone."""
    for name in ("huggingface", "lightning"):
        monkeypatch.delitem(sys.modules, f"msdu.integrations.{name}", raising=False)
    stand_in(monkeypatch, "transformers", TrainerCallback=object)
    stand_in(monkeypatch, "lightning")
    stand_in(monkeypatch, "lightning.pytorch")
    stand_in(monkeypatch, "lightning.pytorch.trainer")
    strategy = type("DDPStrategy", (), {"setup": lambda *_: None})
    stand_in(monkeypatch, "lightning.pytorch.strategies", DDPStrategy=strategy)
    stand_in(monkeypatch, "lightning.pytorch.trainer.states", TrainerFn=types.SimpleNamespace())
    from msdu.integrations.huggingface import MsduCallback
    from msdu.integrations.lightning import MsduStrategy

    monkeypatch.setenv("MSDU_RANKS_LEAST", "1")
    with pytest.raises(msdu.Error, match="this Trainer cannot follow"):
        MsduCallback().on_train_begin(types.SimpleNamespace(world_size=1), None, None)
    with pytest.raises(msdu.Error, match="Lightning's Trainer cannot follow"):
        MsduStrategy().setup(None)
    for name in ("huggingface", "lightning"):
        monkeypatch.delitem(sys.modules, f"msdu.integrations.{name}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_uneven_epochs_that_optimizers_would_have_to_follow() -> None:
    with attach(ranks=1, rank=0, rendezvous=f"tcp://127.0.0.1:{free_port()}") as run:
        with pytest.raises(msdu.Error, match=r"msdu.batches\(\) divide the samples"):
            run.join()


def test_batches_by_the_clock() -> None:
    place = f"tcp://127.0.0.1:{free_port()}"
    with attach(ranks=1, rank=0, rendezvous=place, uneven="clock") as run:
        with pytest.raises(msdu.Error, match="cannot be given to others"):
            next(iter(msdu.batches(8, 2, attachment=run)))


def test_the_place_beside_a_rendezvous() -> None:
    assert _level._next_port("tcp://node0:7") == "tcp://node0:8"
    assert _level._next_port("tcp://node0:7,[::1]:8") == "tcp://node0:8,[::1]:9"
    assert _level._next_port("file:///shared") == "file:///shared"
