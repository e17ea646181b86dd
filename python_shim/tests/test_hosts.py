# SPDX-License-Identifier: Apache-2.0
"""Hosts of several ranks: to the others a host is one rank, whose batch is that of all its ranks."""

from __future__ import annotations

from typing import Any

import nets
import pytest
import ranks
import torch

import msdu

STEPS = 21
SETTINGS: dict[str, Any] = {
    "interval": "fixed",
    "interval_steps": 4,
    "warmup_steps": 1,
    "wire": "float32",
    "target_overhead": 1,
}


def trainer(per_host: int, kind: str, form: str) -> dict[str, Any]:
    """``per_host`` ranks on each of two hosts, which take the same samples as a host."""
    rank, _ = ranks.join_torch()
    model = nets.mlp()
    optimizer = nets.OPTIMIZERS[kind](model.parameters())
    host = rank // per_host
    settings = {**SETTINGS, "hosts": "ab"[host] if per_host > 1 else "flat"}
    if form == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        run: Any = msdu.HookState(wrapped, optimizer, **settings)
        wrapped.register_comm_hook(run, msdu.comm_hook)
        forward: torch.nn.Module = wrapped
    else:
        run = msdu.attach(model, optimizer, **settings)
        forward = model
    before = []
    for step in range(STEPS):
        optimizer.zero_grad()
        members = [rank] if per_host > 1 else [2 * rank, 2 * rank + 1]
        made = [nets.batch(member, step) for member in members]
        x, y = torch.cat([x for x, _ in made]), torch.cat([y for _, y in made])
        if form == "accumulate":
            half = len(x) // 2
            with run.no_sync():
                (0.5 * nets.loss_of(forward, x[:half], y[:half])).backward()
            (0.5 * nets.loss_of(forward, x[half:], y[half:])).backward()
        else:
            nets.loss_of(forward, x, y).backward()
        optimizer.step()
        run.wait()
        before.append(nets.flat(model))
    summary = run.summary()
    run.finish()
    return {
        "steps": torch.stack(before),
        "end": nets.flat(model),
        "domain": summary.domain,
        "gradient_ranks": summary.gradient_ranks,
    }


@pytest.mark.parametrize("form", ["plain", "accumulate", "ddp"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_host_is_one_rank_of_a_larger_batch(kind: str, form: str) -> None:
    hosts = ranks.run(trainer, 2, kind, form, ranks=4)
    whole = ranks.run(trainer, 1, kind, form, ranks=2)
    for rank, result in enumerate(hosts):
        assert result["domain"] == "parameter" and result["gradient_ranks"] == 2
        assert torch.equal(result["steps"], hosts[rank // 2 * 2]["steps"])
        assert torch.equal(result["end"], hosts[0]["end"])
        wanted = whole[rank // 2]["steps"]
        torch.testing.assert_close(result["steps"], wanted, rtol=2e-4, atol=2e-5)
    assert whole[0]["gradient_ranks"] == 1
    assert not torch.equal(hosts[0]["steps"][-3], hosts[2]["steps"][-3])  # between two rounds


def closures() -> torch.Tensor:
    """LBFGS calls its closure several times in a step; only the first has a mean."""
    rank, _ = ranks.join_torch()
    model = nets.mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    run = msdu.attach(model, optimizer, **SETTINGS, hosts="ab"[rank // 2])
    for step in range(9):

        def closure(at: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nets.loss_of(model, *nets.batch(rank, at))
            loss.backward()
            return loss

        optimizer.step(closure)
    run.finish()
    return nets.flat(model)


def test_the_passes_of_a_closure_are_one_step() -> None:
    ends = ranks.run(closures, ranks=4)
    assert all(torch.equal(end, ends[0]) and end.isfinite().all() for end in ends)


def uneven(epochs: int) -> dict[str, Any]:
    """Ranks of a host, and a whole host, run out of batches one by one."""
    rank, _ = ranks.join_torch()
    model = nets.mlp()
    optimizer = nets.OPTIMIZERS["sgd"](model.parameters())
    run = msdu.attach(model, optimizer, **SETTINGS, hosts="ab"[rank // 2])
    after = []
    for epoch in range(epochs):
        for step in range(5 + (3 * rank + epoch) % 7):
            optimizer.zero_grad()
            nets.loss_of(model, *nets.batch(rank, 100 * epoch + step)).backward()
            optimizer.step()
        run.join()
        after.append(nets.flat(model))
    run.finish()
    return {"after": after, "end": nets.flat(model)}


def test_ranks_of_a_host_are_equal_after_an_uneven_epoch() -> None:
    results = ranks.run(uneven, 3, ranks=4)
    for rank, result in enumerate(results):
        assert all(map(torch.equal, result["after"], results[rank // 2 * 2]["after"]))
        assert torch.equal(result["end"], results[0]["end"])
