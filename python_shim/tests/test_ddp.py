# SPDX-License-Identifier: Apache-2.0
"""msdu.DistributedDataParallel and the hook form, against torch's DistributedDataParallel."""

from __future__ import annotations

import copy
import io
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forks import lacks, launch, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

import msdu

EXACT = {"interval": "fixed", "interval_steps": 1, "wire": "float32"}
LOCAL = {
    "interval": "fixed",
    "interval_steps": 4,
    "warmup_steps": 1,
    "domain": "parameter",
    "wire": "int8",
}
STEPS = 12


class Net(nn.Module):
    """Two branches, one of which may be left out, and on demand sparse rows and statistics."""

    def __init__(self, what: tuple[str, ...]) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, sparse=True) if "sparse" in what else None
        self.norm = nn.BatchNorm1d(8) if "norm" in what else nn.Identity()
        self.first = nn.Linear(8, 16)
        self.odd = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, use_odd: bool = True) -> torch.Tensor:
        if self.table is not None:
            x = x + self.table((x[:, 0].abs() * 3).long().clamp(max=9))
        x = torch.tanh(self.first(self.norm(x)))
        if use_odd:
            x = x + self.odd(x)
        return self.last(x)


def wrap(kind: str, net: nn.Module, make: Any, what: tuple[str, ...], settings: Any) -> Any:
    """Model, optimizer and attachment of a kind."""
    if kind == "wrapper":
        model = msdu.DistributedDataParallel(net, find_unused_parameters=True, **settings)
        return model, make(model.parameters()), lambda: model.attachment
    model = TorchDDP(
        net,
        find_unused_parameters="unused" in what,
        gradient_as_bucket_view="view" in what,
        static_graph="static" in what,
        bucket_cap_mb=25 if "compile" in what else 0.0005,
    )
    optimizer = make(model.parameters())
    state = None
    if kind == "hook":
        state = msdu.HookState(model, optimizer, **settings)
        model.register_comm_hook(state, msdu.comm_hook)
    return model, optimizer, lambda: state


def optimizer_of(what: tuple[str, ...]) -> Any:
    if "adam" in what:
        return lambda params: torch.optim.Adam(params, lr=0.01)
    momentum = 0.0 if "sparse" in what else 0.9
    return lambda params: torch.optim.SGD(params, lr=0.1, momentum=momentum)


def train(kind: str, what: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    """A short training as a script does it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model, optimizer, attachment = wrap(kind, Net(what), optimizer_of(what), what, settings)
    scaler = torch.amp.GradScaler("cpu", enabled="scaler" in what, init_scale=8.0)
    data = torch.Generator().manual_seed(5)
    x = torch.randn(STEPS, ranks, 12, 8, generator=data)[:, rank]
    y = (x @ torch.randn(8, 3, generator=data)).argmax(2)
    if "compile" in what:
        model = torch.compile(model, backend="eager")
    losses, micro = [], 2 if "accumulate" in what else 1
    for step in range(0, STEPS, micro):
        optimizer.zero_grad()
        for i in range(step, step + micro):
            with model.no_sync() if i < step + micro - 1 else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled="amp" in what):
                    out = model(x[i], "unused" not in what or (i + rank) % 3 > 0)
                    loss = nn.functional.cross_entropy(out.float(), y[i])
                if "scaler" in what and step == 4 and rank == 1:
                    loss = loss * float("inf")
                scaler.scale(loss / micro).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    made = attachment()
    if made is not None:
        made.wait()
    params = [p.detach().clone() for p in model.parameters()]
    result = {"losses": losses, "params": params}
    if made is not None:
        result["summary"] = made.summary()
        made.finish()
        result["end"] = {k: v.clone() for k, v in model.state_dict().items()}
        made.close()
    return result


def compare(what: tuple[str, ...], settings: dict[str, Any], kinds: tuple[str, ...]) -> Any:
    dist.init_process_group("gloo")
    try:
        return {kind: train(kind, what, settings) for kind in kinds}
    finally:
        dist.destroy_process_group()


VARIANTS = [
    ("adam", "view"),
    ("unused", "view"),
    ("accumulate",),
    ("amp", "static"),
    ("scaler",),
    ("sparse",),
    ("compile",),
]


@pytest.mark.parametrize("what", VARIANTS, ids="-".join)
def test_interval_of_one_is_torchs(tmp_path: Path, what: tuple[str, ...]) -> None:
    got = values(launch(2, lambda _: compare(what, EXACT, ("torch", "hook", "wrapper")), tmp_path))
    tolerance = 2e-3 if "amp" in what else 3e-6
    for rank in got:
        for kind in ("hook", "wrapper"):
            assert rank[kind]["losses"] == pytest.approx(
                rank["torch"]["losses"], rel=tolerance, nan_ok=True
            ), kind
            assert rank[kind]["summary"].domain == "gradient"
            for one, other in zip(rank[kind]["params"], rank["torch"]["params"]):
                assert torch.allclose(one, other, rtol=1e-4, atol=tolerance), kind


@pytest.mark.parametrize("what", [("norm",), ("adam", "unused", "accumulate")], ids="-".join)
def test_local_steps_end_equal(tmp_path: Path, what: tuple[str, ...]) -> None:
    got = values(launch(2, lambda _: compare(what, LOCAL, ("hook", "wrapper")), tmp_path))
    for kind in ("hook", "wrapper"):
        one, other = got[0][kind], got[1][kind]
        assert one["summary"].domain == "parameter"
        assert one["summary"].rounds < one["summary"].steps
        assert not all(torch.equal(a, b) for a, b in zip(one["params"], other["params"]))
        for name, value in one["end"].items():
            assert torch.equal(value, other["end"][name]), name
    if "unused" in what:  # after a local step DDP gives a zero where the wrapper leaves None
        return
    for rank in got:  # the two forms are one method
        assert rank["hook"]["losses"] == pytest.approx(rank["wrapper"]["losses"], rel=1e-4)


def names(_: int) -> Any:
    """What a script sees of the wrapper."""
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    net = Net(())
    theirs = list(TorchDDP(copy.deepcopy(net)).state_dict())
    model = msdu.DistributedDataParallel(net, **EXACT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    saved = io.BytesIO()
    torch.save(model, saved)  # without its attachment
    saved.seek(0)
    again = torch.load(saved, weights_only=False)
    result = {
        "keys": list(model.state_dict()) == theirs,
        "module": model.module is net,
        "optimizers": model.attachment.optimizers == [optimizer],
        "again": again.attachment is None and torch.equal(again.module.last.bias, net.last.bias),
    }
    model.finish()
    dist.destroy_process_group()
    return result


def test_wrapper_looks_like_torchs(tmp_path: Path) -> None:
    for rank in values(launch(2, names, tmp_path)):
        assert all(rank.values()), rank


def uneven(rank: int) -> Any:
    """Ranks with different numbers of batches, in both forms."""
    dist.init_process_group("gloo")
    found = {}
    for kind in ("hook", "wrapper"):
        for name, settings in (("exact", EXACT), ("local", LOCAL)):
            torch.manual_seed(3)
            model, optimizer, attachment = wrap(kind, Net(()), optimizer_of(()), (), settings)
            for _ in range(2):
                with model.join():
                    for step in range(4 + 3 * rank):
                        optimizer.zero_grad()
                        model(torch.full((2, 8), 0.1 * step)).square().sum().backward()
                        optimizer.step()
            attachment().finish()
            found[kind, name] = [p.detach().clone() for p in model.parameters()]
            attachment().close()
    dist.destroy_process_group()
    return found


@pytest.mark.skipif(lacks("msdu_join"), reason="this library has no msdu_join()")
def test_uneven_epochs_end_equal(tmp_path: Path) -> None:
    got = values(launch(2, uneven, tmp_path))
    for key, params in got[0].items():
        for one, other in zip(params, got[1][key]):
            assert torch.equal(one, other), key


def misuse(_: int) -> list[str]:
    dist.init_process_group("gloo")
    net = TorchDDP(Net(()))
    said = []

    def refused(function: Any) -> None:
        try:
            function()
        except (msdu.Error, RuntimeError) as problem:
            said.append(str(problem))

    refused(lambda: msdu.HookState(net.module))
    refused(lambda: msdu.attach(net))
    refused(lambda: msdu.DistributedDataParallel(Net(()), device_ids=[0, 1]))
    net.register_comm_hook(object(), msdu.comm_hook)
    refused(lambda: net(torch.ones(2, 8)).sum().backward())
    other = TorchDDP(Net(()))
    state = msdu.HookState(other, **EXACT)
    other.register_comm_hook(state, msdu.comm_hook)
    other(torch.ones(2, 8)).sum().backward()
    state.finish()
    refused(lambda: other(torch.ones(2, 8)).sum().backward())
    return said


def test_misuse_is_named(tmp_path: Path) -> None:
    for said in values(launch(2, misuse, tmp_path)):
        assert len(said) == 5, said
        assert "not a DistributedDataParallel" in said[0]
        assert "attach its .module" in said[1]
        assert "one device" in said[2]
        assert "make an msdu.HookState" in said[3]
        assert "after finish()" in said[4]


def lost(rank: int) -> Any:
    """Rank 1 goes away in the middle."""
    dist.init_process_group("gloo")
    model, optimizer, _ = wrap("hook", Net(()), optimizer_of(()), (), EXACT)
    for step in range(8):
        if rank == 1 and step == 4:
            raise SystemExit(3)
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def test_a_lost_rank_ends_the_backward_pass(tmp_path: Path) -> None:
    begin = time.monotonic()
    one, other = launch(2, lost, tmp_path, MSDU_DEADLINE_MS="30000")
    assert other.code == 3
    assert one.code == 1 and "rank 1" in one.problem, one.problem
    assert time.monotonic() - begin < 100
