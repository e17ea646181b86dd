# SPDX-License-Identifier: Apache-2.0
"""The attachment itself: hooks, copies, forks, what it shows."""

from __future__ import annotations

import copy
import io
import os
import threading
from typing import Any

import nets
import pytest
import ranks
import torch
from nets import OPTIMIZERS
from test_parity import LOCAL, PLAIN
from torch import nn
from torch.utils.checkpoint import checkpoint

import msdu
from msdu import _choose


def alone(**settings: Any) -> tuple[nn.Module, torch.optim.Optimizer, msdu.Attachment]:
    """One rank in this process; a rule that is named keeps the library at work."""
    settings = {"correct": "average", **settings}
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    return model, optimizer, msdu.attach(model, optimizer, **settings)


@pytest.mark.parametrize("correct", [None, "average"])
@pytest.mark.parametrize("settings", [PLAIN, LOCAL], ids=["gradient", "parameter"])
def test_one_rank_trains_as_without(correct: Any, settings: dict[str, Any]) -> None:
    """With no rule named there is nothing to do, and nothing but counting is done."""
    plain = nets.mlp()
    nets.train(plain, OPTIMIZERS["sgd"](plain.parameters()), range(5), 0)
    model, optimizer, attachment = alone(correct=correct, **settings)
    nets.train(model, optimizer, range(5), 0)
    attachment.wait()
    nets.close_to(nets.flat(model), nets.flat(plain), 1e-6)  # anchor - (anchor - w) rounds
    if correct is None or settings is PLAIN:
        assert torch.equal(nets.flat(model), nets.flat(plain))
    assert attachment.summary().steps == 5 and len(attachment.rows()) == 5
    assert (attachment.summary().rounds == 0) == (correct is None)
    attachment.join()
    attachment.synchronize()
    state = attachment.state_dict()
    attachment.finish()
    attachment.close()
    _, _, attachment = alone(correct=correct, **settings)
    attachment.load_state_dict(state)
    assert attachment.summary().steps == 5
    attachment.close()


def test_ranks_may_be_threads() -> None:
    """Over backend local, and again when they attach once more; each trains as with processes."""
    ends: list[Any] = [None, None]
    lock = threading.Lock()  # nets.mlp() sets torch's seed

    def train(rank: int) -> None:
        with lock:
            model = nets.mlp()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        for part in range(2):
            attachment = msdu.attach(
                model, optimizer, backend="local", job="threads", ranks=2, rank=rank,
                deadline_ms=20000, **PLAIN,
            )
            nets.train(model, optimizer, range(5 * part, 5 * part + 5), rank)
            attachment.finish()
            attachment.close()
        ends[rank] = nets.flat(model)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends[0] is not None and torch.equal(ends[0], ends[1])
    alone = nets.mlp()
    nets.train(alone, OPTIMIZERS["sgd"](alone.parameters()), range(10), 0)
    assert not torch.equal(ends[0], nets.flat(alone))


def test_an_outer_optimizer_acts_on_one_rank_too() -> None:
    model, optimizer, attachment = alone(**{**LOCAL, "correct": "outer", "outer_lr": 0.5})
    plain = nets.mlp()
    for net, stepped in ((model, optimizer), (plain, OPTIMIZERS["sgd"](plain.parameters()))):
        nets.train(net, stepped, range(1), 0)
    attachment.wait()
    assert not torch.equal(nets.flat(model), nets.flat(plain))
    attachment.close()


def test_what_it_shows() -> None:
    pytest.importorskip("matplotlib").use("agg")
    model, optimizer, attachment = alone(**{**LOCAL, "interval_steps": 2})
    nets.train(model, optimizer, range(7), 0)
    now = attachment.summary()
    assert (now.steps, now.rank, now.ranks, now.domain) == (7, 0, 1, "parameter")
    assert now.interval == "fixed" and now.elapsed_ns > 0 and 0 <= now.waited <= 1
    assert "7 steps" in str(now)
    assert msdu.summary()[0].steps == 7
    assert set(attachment.progress()) == {"h", "wire", "waited", "fewer"}
    assert [row.step for row in attachment.rows()] == list(range(1, 8))
    figure = msdu.plot(attachment)
    assert len(figure.axes) == 3
    assert list(figure.axes[1].lines[0].get_xdata()) == list(range(1, 8))
    assert "attached" in repr(attachment)
    attachment.finish()
    assert "finished" in repr(attachment)
    attachment.close()
    assert attachment.summary().steps == 7
    assert "closed" in repr(attachment)


def test_the_history_is_bounded() -> None:
    from msdu import _abi, _summary

    history = _summary.History()
    for step in range(1, 3 * _summary._ROWS):
        history.add(_abi.SummaryStruct(steps=step, wire=b"int4"))
    steps = [row.step for row in history.rows]
    assert len(steps) <= _summary._ROWS and steps == sorted(steps)
    assert steps[0] < 10 and steps[-1] > 3 * _summary._ROWS - 8
    assert {b - a for a, b in zip(steps, steps[1:])} == {4}


def test_what_was_waited_is_drawn_over_the_last_rows() -> None:
    pytest.importorskip("matplotlib").use("agg")
    from msdu import _abi, _summary

    history = _summary.History()
    for step in range(1, 101):  # of 1 ms each; the first 50 wait half of every second one
        waits = min(step, 50) // 2
        history.add(
            _abi.SummaryStruct(
                steps=step, wire=b"int4", wait_ns=waits * 500_000, elapsed_ns=step * 1_000_000
            )
        )
    shares = list(msdu.plot(history).axes[2].lines[0].get_ydata())
    assert shares[:2] == [50.0, 25.0]  # the second step's, then of both
    assert shares[31] == pytest.approx(100 * 15 * 0.5 / 31)  # steps 2 to 33
    assert shares[-1] == history.waited() == 0


def test_all_hooks_go() -> None:
    plain = nets.mlp()
    model, optimizer, attachment = alone()
    attachment.close()

    def hooks(net: nn.Module) -> int:
        count = 0
        for module in net.modules():
            count += len(module._forward_pre_hooks) + len(module._state_dict_pre_hooks)
            count += len(module._load_state_dict_pre_hooks)
        return count + sum(len(p._post_accumulate_grad_hooks or {}) for p in net.parameters())

    assert hooks(model) == hooks(plain) == 0
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_copies_of_the_model_are_not_attached() -> None:
    model, optimizer, attachment = alone(**{**LOCAL, "interval_steps": 2})
    nets.train(model, optimizer, range(2), 0)
    packed = io.BytesIO()
    torch.save(model, packed)
    packed.seek(0)
    for other in (copy.deepcopy(model), torch.load(packed, weights_only=False)):
        nets.train(other, OPTIMIZERS["sgd"](other.parameters()), range(2), 0)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    averaged(nets.batch(0, 0)[0]).sum().backward()
    assert attachment.summary().steps == 2
    attachment.close()


def forked() -> int:
    """A data loader's worker has the attachment's memory but must not touch its connections."""
    rank = ranks.rank()
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = msdu.attach(model, optimizer, **{**LOCAL, "interval_steps": 2})

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            x, y = nets.batch(rank, index)
            with torch.no_grad():  # a worker that uses the model: legal, if unusual
                model(x)
            return x, y, "parent" in repr(attachment)

    loader = torch.utils.data.DataLoader(
        Data(), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    for x, y, is_disowned in loader:
        assert is_disowned
        optimizer.zero_grad()
        nets.loss_of(model, x, y).backward()
        optimizer.step()
    child = os.fork()
    if child == 0:
        attachment.close()
        os._exit(0 if attachment.is_closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    attachment.finish()
    steps = attachment.summary().steps
    attachment.close()
    return steps


def test_forked_workers_do_not_touch_the_connections() -> None:
    assert ranks.run(forked) == [12, 12]


# --- waits of the forward pass ---


class Reads(nn.Module):
    """A child whose weight the parent reads without calling it, and one that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.called = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.free = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.called(x) * self.free
        return self.attention(x, x, x)[0]


def test_it_is_learned_whose_forward_needs_a_parameter() -> None:
    model = Reads()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    # a rule by name: one rank without one has nothing to wait for
    attachment = msdu.attach(model, optimizer, **{**LOCAL, "interval_steps": 2}, correct="average")
    waits = attachment._waits
    assert len(waits.early) == len(list(model.parameters()))
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 2, 4)).sum().backward()
        optimizer.step()
    assert waits.early == []
    ids = {slot.name: slot.id for slot in attachment._slots}
    assert ids["attention.out_proj.weight"] in waits._hooks["attention"].ids
    assert ids["called.weight"] in waits._hooks["called"].ids
    assert ids["free"] in waits._hooks[""].ids
    attachment.close()


def waits_in_forward() -> bool:
    """The forward pass sees averaged parameters although step() returned before they were."""
    rank = ranks.rank()
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[list[torch.Tensor]] = []

    def look(module: nn.Module, args: Any) -> None:
        seen[-1].append(module.weight.detach().clone())

    attachment = msdu.attach(model, optimizer, **{**LOCAL, "interval_steps": 1})
    for layer in model:
        layer.register_forward_pre_hook(look)  # after ours
    made = torch.Generator().manual_seed(rank)
    for _ in range(10):
        seen.append([])
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=made)).square().mean().backward()
        optimizer.step()
    attachment.finish()
    attachment.close()
    torch.save(seen, f"{os.environ['TEST_FOLDER']}/{rank}.pt")
    return attachment._waits.early == []


def test_each_layer_sees_what_the_ranks_agreed_on(tmp_path: Any) -> None:
    assert ranks.run(waits_in_forward, env={"TEST_FOLDER": str(tmp_path)}) == [True, True]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for one, other in zip(first, second):
        assert all(torch.equal(a, b) for a, b in zip(one, other))


def checkpointed(reentrant: bool) -> tuple[torch.Tensor, int]:
    """Forward passes inside the backward pass."""
    rank = ranks.rank()
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, **PLAIN) as attachment:
        for step in range(4):
            optimizer.zero_grad()
            x, y = nets.batch(rank, step)
            x = model[1](model[0](x))
            x = checkpoint(lambda t: model[4](model[3](model[2](t))), x, use_reentrant=reentrant)
            nn.functional.cross_entropy(x, y).backward()
            optimizer.step()
        attachment.finish()
        return nets.flat(model), attachment.summary().steps


def test_checkpoints_of_both_kinds() -> None:
    (kept, steps), (other, _) = ranks.run(checkpointed, False)
    assert torch.equal(kept, other) and steps == 4
    (again, steps), (other, _) = ranks.run(checkpointed, True)
    assert torch.equal(again, other) and steps == 4
    nets.close_to(again, kept, 1e-6)


def test_evaluation_between_backward_and_step() -> None:
    for settings in (PLAIN, {**LOCAL, "interval_steps": 2}):
        model, optimizer, attachment = alone(**settings)
        for step in range(3):
            optimizer.zero_grad()
            nets.loss_of(model, *nets.batch(0, step)).backward()
            with torch.no_grad():
                model(nets.batch(0, 99)[0])
            optimizer.step()
        assert attachment.summary().steps == 3
        attachment.close()


def test_a_pass_that_was_broken_off_is_over() -> None:
    model, optimizer, attachment = alone(**{**LOCAL, "interval_steps": 2})

    def interrupt(grad: torch.Tensor) -> None:
        raise KeyboardInterrupt

    handle = model[0].weight.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        nets.loss_of(model, *nets.batch(0, 0)).backward()
    handle.remove()
    nets.train(model, optimizer, range(3), 0)
    attachment.finish()
    attachment.close()


def test_log_lines_go_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    os.environ["MSDU_SLICE_BITES"] = "1"
    try:
        with caplog.at_level("WARNING", logger="msdu"):
            alone()[2].close()
    finally:
        del os.environ["MSDU_SLICE_BITES"]
    assert any("did you mean MSDU_SLICE_BYTES" in record.message for record in caplog.records)


# --- what follows from the optimizers ---


class OwnSGD(torch.optim.SGD):
    """May do anything with a gradient."""


def test_sgd_is_told_where_every_optimizer_is_sgd_itself() -> None:
    model = nets.mlp()

    def told(*kinds: Any, **given: Any) -> str:
        made = [kind(model.parameters(), lr=0.1) for kind in kinds]
        return str(_choose.settings(given, made, torch.device("cpu")).get("optimizer"))

    assert told(torch.optim.SGD) == told(torch.optim.SGD, torch.optim.SGD) == "sgd"
    assert told(torch.optim.AdamW) == "adam"
    assert told(OwnSGD) == told(torch.optim.SGD, torch.optim.AdamW) == "unknown"
    assert told(torch.optim.RMSprop) == "unknown"
    assert told(torch.optim.SGD, optimizer="unknown") == "unknown"
    assert told() == "None"


def clipping(how: str) -> bool:
    """Does the library know that mean gradients were changed?"""
    ranks.join_torch()
    model = nets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    run = msdu.attach(model, optimizer, domain="gradient")
    for step in range(3):
        optimizer.zero_grad()
        if how == "micro-batches":
            with run.no_sync():
                nets.loss_of(model, *nets.batch(run.rank, 7)).backward()
        nets.loss_of(model, *nets.batch(run.rank, step)).backward()
        if how == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        elif how == "value" and step == 2:
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
    run.finish()
    run.close()
    return run._clips


@pytest.mark.parametrize("how", ["", "micro-batches", "norm", "value"])
def test_a_trainer_that_clips_mean_gradients_is_noticed(how: str) -> None:
    assert ranks.run(clipping, how, ranks=2) == [how in ("norm", "value")] * 2
