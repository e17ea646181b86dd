# SPDX-License-Identifier: Apache-2.0
"""What trainers do beside a plain loop, against DistributedDataParallel where it can do it too."""

from __future__ import annotations

from typing import Any, Callable

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from nets import OPTIMIZERS
from test_parity import LOCAL, PLAIN
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import msdu

Loop = Callable[[nn.Module, Any, int], Any]


def compare(
    make: Callable[[], nn.Module], loop: Loop, optimizer: str = "sgd", **ddp: Any
) -> tuple[torch.Tensor, torch.Tensor, Any, Any]:
    """Parameters and what the loop returns, ours and DDP's."""
    rank, _ = ranks.join_torch()
    theirs, ours = make(), make()
    wrapped = DDP(theirs, **ddp)
    wanted = loop(wrapped, OPTIMIZERS[optimizer](wrapped.parameters()), rank)
    stepped = OPTIMIZERS[optimizer](ours.parameters())
    with msdu.attach(ours, stepped, **PLAIN):
        got = loop(ours, stepped, rank)
    return nets.flat(ours), nets.flat(theirs), got, wanted


# --- mixed precision ---


def autocast_loop(model: nn.Module, optimizer: Any, rank: int) -> None:
    for step in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nets.loss_of(model, *nets.batch(rank, step))
        loss.backward()
        optimizer.step()


def scaler_loop(model: nn.Module, optimizer: Any, rank: int) -> list[float]:
    """Rank 1 has an infinite loss in steps 2 and 5."""
    device = next(model.parameters()).device
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        loss = nets.loss_of(model, *nets.batch(rank, step))
        if rank == 1 and step in (2, 5):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def autocast() -> Any:
    return compare(nets.mlp, autocast_loop, "adamw")


def scaled() -> Any:
    return compare(nets.mlp, scaler_loop, "adamw")


def test_autocast_equals_ddp() -> None:
    for ours, theirs, _, _ in ranks.run(autocast):
        nets.close_to(ours, theirs, 1e-5)


def test_an_infinity_skips_the_step_on_all_ranks_as_with_ddp() -> None:
    for ours, theirs, scales, wanted in ranks.run(scaled):
        nets.close_to(ours, theirs, 1e-5)
        assert scales == wanted
        assert scales[-1] == 256.0  # two steps were skipped


def scaled_locally() -> tuple[torch.Tensor, int, int]:
    """Local steps: rank 1 alone skips two of them, which are iterations all the same."""
    rank = ranks.rank()
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, **LOCAL, interval_steps=3) as attachment:
        scaler_loop(model, optimizer, rank)
        model(nets.batch(rank, 0)[0])  # the next iteration begins: a skipped last step is over
        attachment.finish()
        now = attachment.summary()
    return nets.flat(model), now.steps, now.rounds


def test_a_skipped_local_step_counts_as_an_iteration() -> None:
    (first, *counts), (second, *others) = ranks.run(scaled_locally)
    assert torch.equal(first, second)
    assert bool(first.isfinite().all())
    assert counts == others == [8, 4]  # met after steps 0, 1, 4, 7: all of them


def without_scaler() -> str:
    rank = ranks.rank()
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = msdu.attach(model, optimizer, **PLAIN)
    before = nets.flat(model)
    loss = nets.loss_of(model, *nets.batch(rank, 0))
    (loss * float("nan") if rank == 1 else loss).backward()
    with pytest.raises(msdu.Error) as problem:
        optimizer.step()
    assert torch.equal(nets.flat(model), before)
    assert problem.value.status == "MSDU_ERR_NOT_FINITE"
    optimizer.zero_grad()  # goes on after a look at it
    nets.train(model, optimizer, range(1, 3), rank)
    attachment.finish()
    attachment.close()
    return str(problem.value)


def test_a_nan_without_a_scaler_raises_before_anything_is_updated() -> None:
    for text in ranks.run(without_scaler):
        assert "rank 1" in text and "NaN" in text


# --- parameters that are used now and then ---


class Branches(nn.Module):
    """`a` on even ranks and steps, `b` on others, `never` nowhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a = nn.Linear(nets.FEATURES, nets.CLASSES)
        self.b = nn.Linear(nets.FEATURES, nets.CLASSES)
        self.c = nn.Linear(nets.FEATURES, nets.CLASSES)
        self.never = nn.Linear(nets.FEATURES, nets.CLASSES)

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return (self.a(x), self.b(x), self.c(x))[which]


def branch_loop(model: nn.Module, optimizer: Any, rank: int) -> list[list[bool]]:
    seen = []
    for step in range(9):
        optimizer.zero_grad()
        x, y = nets.batch(rank, step)
        # steps 0, 3, 6: a on both ranks; else rank 0 b and rank 1 b or c
        which = 0 if step % 3 == 0 else 1 + rank * (step % 2)
        nn.functional.cross_entropy(model(x, which), y).backward()
        seen.append([p.grad is None for p in model.parameters()])
        optimizer.step()
    return seen


def branches() -> Any:
    return compare(Branches, branch_loop, "adam", find_unused_parameters=True)


def test_unused_parameters_equal_ddp() -> None:
    for ours, theirs, missing, wanted in ranks.run(branches):
        nets.close_to(ours, theirs, 1e-5)
        assert missing == wanted  # None only where no rank used it


def branches_locally() -> torch.Tensor:
    rank = ranks.rank()
    model = Branches()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    with msdu.attach(model, optimizer, **LOCAL, interval_steps=2):
        branch_loop(model, optimizer, rank)
    return nets.flat(model)


def test_unused_parameters_are_averaged_with_local_steps() -> None:
    first, second = ranks.run(branches_locally)
    assert torch.equal(first, second)


def all_used() -> str:
    rank, _ = ranks.join_torch()
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, unused=False, **PLAIN):
        nets.train(model, optimizer, range(2), rank)
    other = Branches()
    attachment = msdu.attach(other, unused=False, **PLAIN)
    dist.barrier()  # who closes early is lost to a rank that still attaches
    with pytest.raises(msdu.Error, match=r"no gradient for b\.weight, b\.bias, c\.weight and 3"):
        other(nets.batch(rank, 0)[0], 0).sum().backward()
    attachment.close()
    return "done"


def test_a_missing_gradient_is_named_if_none_may_be_missing() -> None:
    assert ranks.run(all_used) == ["done", "done"]


# --- kinds of parameters ---


def sparse_loop(model: nn.Module, optimizer: Any, rank: int) -> list[bool]:
    """Rank 1 does not use the table in step 2, nobody in step 3."""
    kinds = []
    for step in range(6):
        optimizer.zero_grad()
        made = torch.Generator().manual_seed(100 * rank + step)
        words = torch.randint(20, (4, 3), generator=made)
        x = model.table(words).mean(dim=1)
        if step == 3 or (step == 2 and rank == 1):
            x = x.detach()
        model.head(x).square().mean().backward()
        grad = model.table.weight.grad
        kinds.append(grad is None or grad.is_sparse)
        optimizer.step()
    return kinds


class Words(nn.Module):
    """An embedding and a layer."""

    def __init__(self, is_sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(20, 6, sparse=is_sparse)
        self.head = nn.Linear(6, 2)


def sparse(is_sparse: bool) -> tuple[torch.Tensor, list[bool]]:
    rank = ranks.rank()
    model = Words(is_sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with msdu.attach(model, optimizer, **PLAIN):
        kinds = sparse_loop(model, optimizer, rank)
    return nets.flat(model), kinds


def test_sparse_gradients_equal_dense_ones_and_stay_sparse() -> None:
    for (ours, kinds), (dense, _) in zip(ranks.run(sparse, True), ranks.run(sparse, False)):
        nets.close_to(ours, dense, 1e-6)
        assert all(kinds)


def image_loop(model: nn.Module, optimizer: Any, rank: int) -> None:
    for step in range(5):
        optimizer.zero_grad()
        x, y = nets.image_batch(rank, step)
        nets.loss_of(model, x.to(memory_format=torch.channels_last), y).backward()
        optimizer.step()


def channels_last_net() -> nn.Module:
    torch.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, nets.CLASSES)
    )
    return net.to(memory_format=torch.channels_last)


def channels_last() -> Any:
    return compare(channels_last_net, image_loop)


def test_channels_last_equals_ddp() -> None:
    for ours, theirs, _, _ in ranks.run(channels_last):
        nets.close_to(ours, theirs, 1e-5)


def other_strides() -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient that lies in another order than its parameter does, set by hand."""
    rank = ranks.rank()
    weight = nn.Parameter(torch.zeros(3, 4))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    full = torch.arange(12.0).view(4, 3) * (rank + 1)
    with msdu.attach(model, optimizer, **PLAIN):
        weight.grad = full.t()
        optimizer.step()
    return weight.detach(), -1.5 * torch.arange(12.0).view(4, 3).t()


def test_gradients_of_other_strides_set_by_hand() -> None:
    for got, wanted in ranks.run(other_strides):
        assert torch.equal(got, wanted)


class Tied(nn.Module):
    """One matrix for input and output, and one frozen layer between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(nets.FEATURES, 6, bias=False)
        self.middle = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(nets.FEATURES, 6, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(self.first(x).tanh()) @ self.last.weight


def tied_loop(model: nn.Module, optimizer: Any, rank: int) -> None:
    for step in range(6):
        optimizer.zero_grad()
        x, _ = nets.batch(rank, step)
        (model(x) - x).square().mean().backward()
        optimizer.step()


def tied() -> Any:
    return compare(Tied, tied_loop)


def test_shared_and_frozen_parameters_equal_ddp() -> None:
    for ours, theirs, _, _ in ranks.run(tied):
        nets.close_to(ours, theirs, 1e-6)


class Mixed(nn.Module):
    """Layers of four number formats."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        formats = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        self.layers = nn.ModuleList(nn.Linear(4, 4, dtype=one) for one in formats)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).tanh()
        return x.float()


def mixed_loop(model: nn.Module, optimizer: Any, rank: int) -> None:
    for step in range(4):
        optimizer.zero_grad()
        model(nets.batch(rank, step)[0][:, :4]).square().mean().backward()
        optimizer.step()


def mixed(settings: dict[str, Any]) -> list[torch.Tensor]:
    rank = ranks.rank()
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with msdu.attach(model, optimizer, **settings):
        mixed_loop(model, optimizer, rank)
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 2}], ids=["h1", "h2"])
def test_four_number_formats_in_one_model(settings: dict[str, Any]) -> None:
    for one, other in zip(*ranks.run(mixed, settings)):
        assert torch.equal(one, other)
        assert not torch.equal(one, Mixed().layers[0].weight)


# --- optimizers ---


def lbfgs_loop(model: nn.Module, _: Any, rank: int) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    attachment = None
    if not isinstance(model, DDP):
        attachment = msdu.attach(model, optimizer, **PLAIN)
    x, y = nets.batch(rank, 0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nets.loss_of(model, x, y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    if attachment is not None:
        attachment.finish()
        attachment.close()


def closures() -> tuple[torch.Tensor, torch.Tensor]:
    rank, _ = ranks.join_torch()
    theirs, ours = nets.mlp(torch.float32), nets.mlp(torch.float32)
    lbfgs_loop(DDP(theirs), None, rank)
    lbfgs_loop(ours, None, rank)
    return nets.flat(ours), nets.flat(theirs)


def test_closures_equal_ddp() -> None:
    for ours, theirs in ranks.run(closures):
        nets.close_to(ours, theirs, 1e-4)


def closures_locally() -> tuple[torch.Tensor, int]:
    rank = ranks.rank()
    model = nets.mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x, y = nets.batch(rank, 0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nets.loss_of(model, x, y)
        loss.backward()
        return loss

    with msdu.attach(model, optimizer, **LOCAL, interval_steps=2) as attachment:
        for _ in range(5):
            optimizer.step(closure)
        attachment.finish()
        return nets.flat(model), attachment.summary().steps


def test_the_passes_of_a_closure_are_one_local_step() -> None:
    (first, steps), (second, _) = ranks.run(closures_locally)
    assert torch.equal(first, second)
    assert steps == 5


def two_players(has_library: bool) -> tuple[torch.Tensor, int]:
    """Generator and discriminator with an optimizer each, in turn."""
    rank, size = ranks.join_torch()
    torch.manual_seed(7)
    maker, judge = nn.Linear(3, nets.FEATURES), nn.Linear(nets.FEATURES, 1)
    both = nn.ModuleList([maker, judge])
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in both]
    attachment = msdu.attach(both, optimizers, **PLAIN) if has_library else None

    def play(loss: torch.Tensor, mine: int) -> None:
        optimizers[mine].zero_grad()
        loss.backward()
        for p in () if has_library else both[mine].parameters():
            dist.all_reduce(p.grad)
            p.grad /= size
        optimizers[mine].step()

    for step in range(6):
        x, _ = nets.batch(rank, step)
        noise = x[:, :3]
        play(judge(maker(noise).detach()).mean() - judge(x).tanh().mean(), 1)
        play(-judge(maker(noise)).mean(), 0)
    steps = 0
    if attachment is not None:
        attachment.finish()
        steps = attachment.summary().steps
        attachment.close()
    return nets.flat(both), steps


def test_two_optimizers_in_turn() -> None:
    for (ours, steps), (wanted, _) in zip(
        ranks.run(two_players, True), ranks.run(two_players, False)
    ):
        nets.close_to(ours, wanted, 1e-5)
        assert steps == 12


def no_optimizer() -> tuple[torch.Tensor, int]:
    """Parameters updated by hand: a step ends when the next pass begins."""
    rank = ranks.rank()
    model = nets.mlp()
    with msdu.attach(model, **LOCAL, interval_steps=2) as attachment:
        for step in range(5):
            loss = nets.loss_of(model, *nets.batch(rank, step))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            assert not any(p.grad is not None for p in model.parameters()), gradients
            nets.loss_of(model, *nets.batch(rank, step)).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        attachment.finish()
        return nets.flat(model), attachment.summary().steps


def test_without_an_optimizer() -> None:
    (first, steps), (second, _) = ranks.run(no_optimizer)
    assert torch.equal(first, second)
    assert steps == 5


# --- buffers ---


def statistics(buffers: str, settings: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    rank, size = ranks.join_torch()
    model = nets.convnet(seed=rank)
    model[1].running_mean.fill_(float(rank))
    table = torch.tensor([rank, 7], dtype=torch.int32, device=model[1].running_mean.device)
    model.register_buffer("table", table)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = msdu.attach(model, optimizer, buffers=buffers, **settings)
    assert model.table.tolist() == [0, 7] and float(model[1].running_mean[0]) == 0.0
    for step in range(4):
        optimizer.zero_grad()
        nets.loss_of(model, *nets.image_batch(rank, step)).backward()
        optimizer.step()
    attachment.wait()
    local = model[1].running_mean.clone()
    mean = local.clone()
    dist.all_reduce(mean)
    attachment.finish()
    attachment.close()
    return local, mean / size, model[1].running_mean.clone(), model[1].num_batches_tracked


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 3}], ids=["h1", "h3"])
def test_buffers_are_averaged_with_the_parameters(settings: dict[str, Any]) -> None:
    first, second = ranks.run(statistics, "average", settings)
    for _, mean, end, count in (first, second):
        nets.close_to(end, mean, 1e-6)
        assert int(count) == 4
    assert torch.equal(first[2], second[2])


def test_buffers_stay_local_if_asked() -> None:
    first, second = ranks.run(statistics, "local", PLAIN)
    for local, _, end, _ in (first, second):
        assert torch.equal(local, end)
    assert not torch.equal(first[2], second[2])


def exchanged() -> tuple[list[float], int, bool]:
    """Micro-batches that no_sync() kept, reduced before the step; once."""
    rank, _ = ranks.join_torch()
    net = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with msdu.attach(net, optimizer, interval="fixed", interval_steps=1, wire="float32") as run:
        for _ in range(3):
            optimizer.zero_grad()
            with run.no_sync():
                for _ in range(2):
                    net(torch.full((1, 2), 1.0 + rank)).sum().backward()
            run.exchange()
            found = net.weight.grad.flatten().tolist()
            run.exchange()
            optimizer.step()
        return found, run.summary().steps, net.weight.grad.flatten().tolist() == found


def test_what_no_sync_kept_is_exchanged_before_clipping() -> None:
    assert ranks.run(exchanged) == [([3.0, 3.0], 3, True)] * 2
