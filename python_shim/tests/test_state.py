# SPDX-License-Identifier: Apache-2.0
"""State between and beside steps: resume to the bit, synchronize, weights."""

from __future__ import annotations

import io
from typing import Any

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from test_parity import LOCAL, PLAIN

import msdu

CASES: dict[str, dict[str, Any]] = {
    "gradient-int4": {"domain": "gradient", "wire": "int4", "interval": "fixed"},
    "local": {**LOCAL, "interval_steps": 3},
    "local-int4-outer": {**LOCAL, "wire": "int4", "interval_steps": 3, "correct": "outer"},
    "delayed": {**LOCAL, "overlap": "delayed", "interval_steps": 4, "wire": "int8"},
    "streamed": {**LOCAL, "overlap": "streamed", "fragments": 2, "interval_steps": 4},
    "accumulated": {**LOCAL, "domain": "accumulated", "interval_steps": 3},
    "auto": {"interval": "fixed", "interval_steps": 3, "warmup_steps": 4, "wire": "int4"},
    "led": {"interval": "fixed", "interval_steps": 3, "warmup_steps": 4, "second_moments": "mean"},
}


def checkpoint(model: Any, optimizer: Any, attachment: msdu.Attachment) -> bytes:
    """What a rank writes; read back by value."""
    packed = io.BytesIO()
    state = attachment.state_dict()  # first: it ends what is under way
    torch.save([state, model.state_dict(), optimizer.state_dict()], packed)
    return packed.getvalue()


def resumed(settings: dict[str, Any], cut: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    rank = ranks.rank()
    ends = []
    saved = b""
    for part in ("whole", "first", "second"):
        model = nets.mlp()
        name = "adamw" if settings.get("second_moments") == "mean" else "sgd"
        optimizer = OPTIMIZERS[name](model.parameters())
        attachment = msdu.attach(model, optimizer, **settings)
        if part == "second":  # after attach(), which gives all ranks what rank 0 has
            state, of_model, of_optimizer = torch.load(io.BytesIO(saved), weights_only=True)
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            attachment.load_state_dict(state)
        steps = {"whole": range(20), "first": range(cut), "second": range(cut, 20)}[part]
        nets.train(model, optimizer, steps, rank)
        if part == "first":
            saved = checkpoint(model, optimizer, attachment)
        else:
            attachment.finish()
            ends.append(nets.flat(model))
        rounds = attachment.summary().rounds
        attachment.close()
    return ends[0], ends[1], rounds


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cut", [7])
def test_a_resumed_run_is_the_same_to_the_bit(name: str, cut: int) -> None:
    for whole, again, _ in ranks.run(resumed, CASES[name], cut):
        assert torch.equal(whole, again)


def refusals() -> list[str]:
    rank, _ = ranks.join_torch()
    texts = []
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, **PLAIN) as attachment:
        nets.train(model, optimizer, range(2), rank)
        state = attachment.state_dict()
        with pytest.raises(msdu.Error) as problem:
            attachment.load_state_dict(state)
        texts.append(problem.value.status)
        with pytest.raises(msdu.Error) as problem:
            attachment.load_state_dict({**state, "rank": 7})
        texts.append(str(problem.value))
        with pytest.raises(msdu.Error) as problem:
            attachment.load_state_dict({**state, "format": 9})
        texts.append(str(problem.value))
    other = torch.nn.Linear(3, 3)
    attachment = msdu.attach(other, **PLAIN)
    with pytest.raises(msdu.Error) as problem:
        attachment.load_state_dict(state)
    texts.append(problem.value.status)
    dist.barrier()
    attachment.close()
    return texts


def test_states_that_do_not_fit_are_refused() -> None:
    for rank, texts in enumerate(ranks.run(refusals)):
        assert texts == [
            "MSDU_ERR_STATE",
            f"this is rank {rank} of 2; the state is of rank 7 of 2",
            "state of format 9, not 1",
            "MSDU_ERR_MISMATCH",
        ]


def synchronized() -> tuple[list[torch.Tensor], torch.Tensor]:
    rank, size = ranks.join_torch()
    model = nets.mlp(torch.float64)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    seen = []
    with msdu.attach(model, optimizer, **LOCAL, interval_steps=50) as attachment:
        for start in (0, 5, 10):
            nets.train(model, optimizer, range(start, start + 5), rank, torch.float64)
            attachment.wait()
            mean = nets.flat(model)
            dist.all_reduce(mean)
            attachment.synchronize()
            seen.append(nets.flat(model))
            nets.close_to(seen[-1], mean / size, 1e-12)
    return seen, nets.flat(model)


def test_synchronize_makes_ranks_equal_and_training_goes_on() -> None:
    (first, end), (second, other) = ranks.run(synchronized)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert torch.equal(end, other)
    assert not torch.equal(first[0], first[1])


def weighted() -> tuple[torch.Tensor, torch.Tensor]:
    """Batches of 4 and 12 samples, weighted so, against one batch of 16."""
    rank = ranks.rank()
    together, model = nets.mlp(torch.float64), nets.mlp(torch.float64)
    plain = torch.optim.SGD(together.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with msdu.attach(model, optimizer, **PLAIN) as attachment:
        attachment.set_weight(4 + 8 * rank)
        for step in range(5):
            parts = [nets.batch(r, step, torch.float64, 4 + 8 * r) for r in range(2)]
            for net, stepped, data in (
                (together, plain, [torch.cat(both) for both in zip(*parts)]),
                (model, optimizer, parts[rank]),
            ):
                stepped.zero_grad()
                nets.loss_of(net, *data).backward()
                stepped.step()
    return nets.flat(model), nets.flat(together)


def test_weights_of_ranks_make_the_mean_over_samples() -> None:
    for ours, wanted in ranks.run(weighted):
        nets.close_to(ours, wanted, 1e-12)


# --- uneven numbers of batches ---

BATCHES = ((6, 4, 5), (3, 3, 3))  # of each rank, by epoch


def uneven_reference(name: str) -> torch.Tensor:
    """One process: the mean gradient of the ranks that still have a batch."""
    model = nets.mlp(torch.float64)
    optimizer = OPTIMIZERS[name](model.parameters())
    for epoch, counts in enumerate(BATCHES):
        for step in range(max(counts)):
            active = [rank for rank, count in enumerate(counts) if step < count]
            optimizer.zero_grad()
            for rank in active:
                data = nets.batch(rank, 100 * epoch + step, torch.float64)
                (nets.loss_of(model, *data) / len(active)).backward()
            optimizer.step()
    return nets.flat(model)


def uneven(name: str, settings: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    rank = ranks.rank()
    model = nets.mlp(torch.float64)
    optimizer = OPTIMIZERS[name](model.parameters())
    with msdu.attach(model, optimizer, **settings) as attachment:
        for epoch, counts in enumerate(BATCHES):
            steps = range(100 * epoch, 100 * epoch + counts[rank])
            nets.train(model, optimizer, steps, rank, torch.float64)
            attachment.join()
        attachment.wait()
        before = nets.flat(model)
        attachment.finish()
        return before, nets.flat(model), attachment.summary().steps


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_uneven_batches_are_means_over_who_has_one(name: str) -> None:
    wanted = uneven_reference(name)
    found = ranks.run(uneven, name, PLAIN, ranks=3)
    for before, end, steps in found:
        nets.close_to(before, wanted, 1e-11)
        assert torch.equal(before, found[0][0])  # also the momentum that a rank had missed
        assert torch.equal(end, before)
        assert steps == found[0][2]


def test_uneven_batches_with_a_rendezvous_that_is_named(tmp_path: Any) -> None:
    settings = {**PLAIN, "rendezvous": f"file://{tmp_path}"}
    found = ranks.run(uneven, "sgd", settings, ranks=3)
    assert all(torch.equal(before, found[0][0]) for before, _, _ in found)


def test_uneven_batches_with_local_steps() -> None:
    settings = {**LOCAL, "interval_steps": 2}
    found = ranks.run(uneven, "sgd", settings, ranks=3)
    assert all(torch.equal(end, found[0][1]) for _, end, _ in found)
    assert all(steps == found[0][2] >= 9 for _, _, steps in found)
    assert bool(found[0][1].isfinite().all())
