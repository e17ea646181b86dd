# SPDX-License-Identifier: Apache-2.0
"""msdu.pipeline() against one process that accumulates the same micro-batches, to the bit."""

from __future__ import annotations

from typing import Any

import nets
import pipelines
import pytest
import ranks
import torch

import msdu
from msdu import _stages_plan, _stages_run

MICRO_BATCHES = 4
STEPS = range(4)


def accuracy(made: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (made.argmax(-1) == y).double().mean()


def train(model: str, optimizer: str, plans: list[bytes]) -> Any:
    """Steps, with an evaluation before the last one."""
    ranks.join_torch()
    found = []
    for plan in plans:
        pipe = pipelines.make(model, optimizer, MICRO_BATCHES, plan=plan)
        losses = [pipe.step(*pipelines.batch(model, step, MICRO_BATCHES)) for step in STEPS[:-1]]
        batch = pipelines.batch(model, STEPS[-1], MICRO_BATCHES)
        tried = (pipe.evaluate(*batch), pipe.evaluate(*batch, accuracy))
        losses.append(pipe.step(*batch))
        assert all(one.training for one in pipe.modules.values())
        found.append((losses, pipelines.values(pipe), tried))
    return found


@pytest.mark.parametrize(
    ("model", "optimizer"), [("mlp", "sgd"), ("odd", "sgd"), ("transformer", "adamw")]
)
def test_any_cut_and_placement_has_the_bits_of_one_process(model: str, optimizer: str) -> None:
    plans = [pipelines.plan(seed, 6, 3, MICRO_BATCHES) for seed in range(8)]
    net, wanted = pipelines.alone(model, optimizer, STEPS, MICRO_BATCHES)
    by_rank = ranks.run(train, model, optimizer, plans, ranks=3)
    for found in zip(*by_rank):
        assert [one[0] for one in found] == [wanted] * 3
        pipelines.same([one[1] for one in found], net)
        assert found[0][2] == found[1][2] == found[2][2]
        loss, share = found[0][2]
        assert loss == pytest.approx(wanted[-1]) and 0 <= share <= 1


def planned(boundary: str) -> Any:
    ranks.join_torch()
    pipe = pipelines.make("transformer", "adamw", MICRO_BATCHES, boundary=boundary)
    losses = [pipe.step(*pipelines.batch("transformer", step, MICRO_BATCHES)) for step in STEPS]
    pipe.finish()
    return losses, pipelines.values(pipe), pipe.plan.dumps(), str(pipe.summary()), pipe.progress()


def test_it_plans_by_itself() -> None:
    net, wanted = pipelines.alone("transformer", "adamw", STEPS, MICRO_BATCHES)
    found = ranks.run(planned, "float32")
    assert [one[0] for one in found] == [wanted] * 2
    pipelines.same([one[1] for one in found], net)
    assert found[0][2] == found[1][2]
    assert "planned" in found[0][3] and "4 steps of 4 micro-batches" in found[0][3]
    assert found[0][4]["moves"] == "0"
    print(found[0][3])


REPLICATED = pipelines.plan(3, 6, 2, MICRO_BATCHES)


def replicated(clip: float, settings: dict[str, Any]) -> Any:
    rank, _ = ranks.join_torch()
    pipe = pipelines.make(
        "transformer", "adamw", MICRO_BATCHES, replicas=2, plan=REPLICATED, **settings
    )
    losses = []
    for step in STEPS:
        x, y = pipelines.batch("transformer", step, MICRO_BATCHES, rank // 2)
        losses.append(pipe.backward(x, y))
        if clip:
            pipe.clip_grad_norm_(clip)
        pipe.update()
    pipe.finish()
    return losses, pipelines.values(pipe)


EXACT = {"interval": "fixed", "interval_steps": 1, "wire": "float32"}


@pytest.mark.parametrize("clip", [0, 0.5])
def test_two_replicas_of_two_stages_have_the_bits_of_one_process(clip: float) -> None:
    net, wanted = pipelines.alone("transformer", "adamw", STEPS, MICRO_BATCHES, 2, clip)
    found = ranks.run(replicated, clip, EXACT, ranks=4)
    for replica in range(2):
        assert [one[0] for one in found[2 * replica :][:2]] == [wanted[replica::2]] * 2
        pipelines.same([one[1] for one in found[2 * replica :][:2]], net)


LOCAL = {
    "domain": "parameter",
    "interval": "fixed",
    "interval_steps": 2,
    "wire": "float32",
    "warmup_steps": 0,
    "second_moments": "own",
}


def attached() -> Any:
    """The whole model in a rank, attached by hand."""
    rank, _ = ranks.join_torch()
    net = pipelines.whole("transformer")
    optimizer = nets.OPTIMIZERS["adamw"](net.parameters())
    with msdu.attach(net, optimizer, **LOCAL) as run:
        for step in STEPS:
            optimizer.zero_grad()
            x, y = pipelines.batch("transformer", step, MICRO_BATCHES, rank)
            with run.no_sync():
                for part, target in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES)):
                    (pipelines.loss(net(part), target) / MICRO_BATCHES).backward()
            optimizer.step()
    return dict(net.named_parameters())


def test_replicas_take_local_steps_as_whole_models_do() -> None:
    wanted = ranks.run(attached)[0]
    found = ranks.run(replicated, 0, LOCAL, ranks=4)
    for replica in range(2):
        together = {k: v for one in found[2 * replica :][:2] for k, v in one[1].items()}
        assert set(together) == set(wanted)
        for name, value in together.items():
            assert torch.equal(value, wanted[name]), name


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def resumed(before: bytes, after: bytes) -> Any:
    """Two steps under a plan, two more under another, from what rank 0 saved."""
    ranks.join_torch()
    options = {"schedule": decay}
    first = pipelines.make("mlp", "adamw", MICRO_BATCHES, plan=before, **options)
    for step in STEPS[:2]:
        first.step(*pipelines.batch("mlp", step, MICRO_BATCHES))
    own = first.state_dict(gather=False)
    box = [first.state_dict()]
    assert bool(box[0]) == (ranks.rank() == 0)
    torch.distributed.broadcast_object_list(box, 0)  # the file
    state = box[0]
    pipelines.whole("mlp").load_state_dict(state["model"])
    second = pipelines.make("mlp", "adamw", MICRO_BATCHES, plan=after, seed=7, **options)
    second.load_state_dict(state)
    for step in STEPS[2:]:
        second.step(*pipelines.batch("mlp", step, MICRO_BATCHES))
    if own["model"]:
        missing = {**state, "optimizer": {}}
        with pytest.raises(msdu.Error, match="the state has no layer"):
            first.load_state_dict(missing)
    with pytest.raises(msdu.Error, match="3 layers, not 1 and 6"):
        first.load_state_dict({"format": 1, "layers": 3})
    return pipelines.values(second), second.steps


def test_a_checkpoint_fits_any_other_cut() -> None:
    net = pipelines.whole("mlp")
    optimizer = nets.OPTIMIZERS["adamw"](net.parameters())
    schedule = decay(optimizer)
    for step in STEPS:
        optimizer.zero_grad()
        x, y = pipelines.batch("mlp", step, MICRO_BATCHES)
        for part, target in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES)):
            (pipelines.loss(net(part), target) / MICRO_BATCHES).backward()
        optimizer.step()
        schedule.step()
    plans = [pipelines.plan(seed, 6, 2, MICRO_BATCHES) for seed in (1, 2)]
    found = ranks.run(resumed, *plans)
    pipelines.same([one[0] for one in found], net)
    assert [one[1] for one in found] == [4, 4]


SPLIT = {
    0: ["0F0", "0F1", "2F0", "2F1", "2I0", "2I1", "2W0", "2W1", "0B0", "0B1"],
    1: ["1F0", "1F1", "1I0", "1I1", "1W1", "1W0"],
}


def variants() -> Any:
    """Split backward passes in a V, half as many bytes between stages, torch's own messages."""
    ranks.join_torch()
    cuts = [(0, 0, 2), (1, 2, 4), (0, 4, 6)]
    split = _stages_plan.by_hand(cuts, SPLIT, 2).dumps()
    whole = {d: [a.replace("I", "B") for a in o if "W" not in a] for d, o in SPLIT.items()}
    plan = _stages_plan.by_hand(cuts, whole, 2)
    found = []
    for one, boundary, is_early in (
        (split, "float32", True),
        (plan, "bfloat16", True),
        (plan, "float32", False),
    ):
        _stages_run.receives_early = lambda device, answer=is_early: answer
        pipe = pipelines.make("transformer", "sgd", 2, plan=one, boundary=boundary)
        losses = [pipe.step(*pipelines.batch("transformer", step, 2)) for step in STEPS]
        found.append((losses, pipelines.values(pipe)))
    return found


def test_split_backward_narrow_boundaries_and_torchs_messages() -> None:
    net, wanted = pipelines.alone("transformer", "sgd", STEPS, 2)
    found = ranks.run(variants)
    split, narrow, torchs = ([one[i][0] for one in found] for i in range(3))
    assert split == [wanted] * 2
    together = {k: v for one in found for k, v in one[0][1].items()}
    for name, value in net.named_parameters():  # weights of two micro-batches in another order
        torch.testing.assert_close(together[name], value)
    assert torchs == [wanted] * 2
    pipelines.same([one[2][1] for one in found], net)
    assert narrow[0] == pytest.approx(wanted, rel=0.02) and narrow[0] != wanted
