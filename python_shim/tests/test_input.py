# SPDX-License-Identifier: Apache-2.0
"""Bad input: clear exceptions, with the library's text where the library found it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import nets
import pytest
import ranks
import torch
from nets import OPTIMIZERS
from test_parity import LOCAL, PLAIN
from torch import nn

import msdu


def alone(**settings: Any) -> tuple[nn.Module, torch.optim.Optimizer, msdu.Attachment]:
    """One rank in this process; a rule that is named keeps the library at work."""
    settings = {"correct": "average", **settings}
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    return model, optimizer, msdu.attach(model, optimizer, **settings)


def refused(words: str, *args: Any, **kwargs: Any) -> msdu.Error:
    with pytest.raises(msdu.Error, match=words) as problem:
        msdu.attach(*args, **kwargs)
    return problem.value


def test_attaching_twice() -> None:
    model, optimizer, attachment = alone()
    refused("model is attached already", model)
    refused("optimizer is attached already", nets.mlp(), optimizer)
    attachment.close()
    msdu.attach(model, optimizer).close()


def test_arguments_of_the_wrong_kind() -> None:
    refused("model is a list", [])
    refused("optimizer is a int", nets.mlp(), [3])
    refused("neither 'average' nor 'local'", nets.mlp(), buffers="mean")
    refused("no parameter that requires a gradient", nn.ReLU())


def test_settings_that_do_not_exist_or_fit() -> None:
    model = nets.mlp()
    error = refused("unknown setting 'intervall'; did you mean interval", model, intervall="fixed")
    assert error.status == "MSDU_ERR_INVALID"
    refused("window: '65'.*1 .. 64", model, window=65)
    refused("'wire_warmup': gone since 0.3: the first", model, wire_warmup="int4")
    refused("True is not one of", model, wire=True)
    refused("cannot be written", model, job="a\nwindow = 1")
    refused("neither a number", model, window=[1])
    refused("only 'local' works", model, state="reset")
    refused("follows torch.optim.SGD only", model, OPTIMIZERS["adam"](model.parameters()),
            domain="accumulated")  # fmt: skip


def test_every_setting_of_the_library_is_accepted_with_its_default() -> None:
    for name, setting in msdu.settings().items():
        if setting.default == "" or name == "optimizer":  # attach() reads that from its argument
            continue
        company = {"ranks": 1} if name == "rank" else {}
        alone(**company, **{name: setting.default})[2].close()
        if setting.type == "integer" and setting.default.isdigit():
            alone(**company, **{name: int(setting.default)})[2].close()


def test_texts_reach_the_library(tmp_path: Any) -> None:
    """Each text setting, by what the library does with it or says against it."""
    model, optimizer, attachment = alone(trace_file=tmp_path / "trace-%r.json")
    nets.train(model, optimizer, range(2), 0)
    attachment.finish()
    attachment.close()
    assert (tmp_path / "trace-0.json").stat().st_size > 0
    ini = tmp_path / "run.ini"
    ini.write_text("[msdu]\ninterval = qsr\n")
    _, _, attachment = alone(config_file=ini, interval="fixed")
    assert attachment.summary().interval == "qsr"
    attachment.close()
    refused("no rule", nets.mlp(), correct="no rule")
    refused("tls_key", nets.mlp(), tls_key="/a ; b.pem")
    refused("settings file.*No such file", nets.mlp(), config_file=tmp_path / "nothing")
    refused("settings:2: trace_file.*too long", nets.mlp(), ranks=1, trace_file=600 * "x")


def test_what_a_file_says_is_seen_before_there_is_a_context(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ini = tmp_path / "run.ini"
    ini.write_text("domain = accumulated\noptimizer = sgd\n")
    adam = nets.mlp()
    refused("follows torch.optim.SGD only", adam, OPTIMIZERS["adam"](adam.parameters()),
            config_file=ini)  # fmt: skip
    monkeypatch.setenv("MSDU_CONFIG", str(ini))
    refused("follows torch.optim.SGD only", adam, OPTIMIZERS["adam"](adam.parameters()))
    ini.write_text("state = reset\n")
    refused("only 'local' works", nets.mlp(), state="local")


def test_a_zero_is_not_the_default() -> None:
    """A zero in the C struct means the default, which is 8 here."""
    model, optimizer, attachment = alone(
        interval="fixed", interval_steps=4, warmup_steps=0, domain="auto", broadcast=False
    )
    nets.train(model, optimizer, range(10), 0)
    assert attachment.summary().interval_steps == 4
    attachment.close()


def test_environment_wins_over_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSDU_INTERVAL", "qsr")
    _, _, attachment = alone(interval="fixed")
    assert attachment.summary().interval == "qsr"
    attachment.close()


@pytest.mark.parametrize("dtype", [torch.complex64])
def test_a_dtype_that_is_not_supported(dtype: torch.dtype) -> None:
    model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=dtype))})
    error = refused("parameter 'w' is torch.complex64; supported: float32", model)
    assert error.status == "MSDU_ERR_UNSUPPORTED"


def test_parameters_that_cannot_be_exchanged() -> None:
    refused("has no shape yet", nn.LazyLinear(3))
    spread = nn.ParameterDict({"w": nn.Parameter(torch.zeros(1).expand(4))})
    refused("holes or overlaps", spread)
    memory = torch.zeros(4)
    shared = nn.ParameterDict({"a": nn.Parameter(memory), "b": nn.Parameter(memory)})
    refused("'a' and 'b' share memory", shared)
    refused("no backend for parameters on meta", nn.Linear(2, 2, device="meta"))


class _Elsewhere(nn.Parameter):
    """A parameter that says it is on a GPU; memory is not reached before that is refused."""

    place = torch.device("cuda", 0)
    device = property(lambda self: self.place)


class _Second(_Elsewhere):
    place = torch.device("cuda", 1)


def _on(*kinds: Any) -> nn.Module:
    return nn.ParameterList([kind(torch.zeros(3)) for kind in kinds])


def test_a_gpu_without_the_module() -> None:
    error = refused('parameters are on cuda:0: no backend "nccl": looked for', _on(_Elsewhere))
    assert error.status == "MSDU_ERR_NOT_FOUND" and "MSDU_WITH_NCCL" in str(error)


def test_a_backend_that_does_not_reach_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    refused('backend: "gloo" does not reach parameters on cuda:0', _on(_Elsewhere), backend="gloo")
    refused('"nccl" does not reach parameters on cpu; leave it out', nets.mlp(), backend="nccl")
    monkeypatch.setenv("MSDU_BACKEND", "nccl")
    refused('"nccl" does not reach parameters on cpu; leave it out, or say "gloo"', nets.mlp())


def test_tensors_on_several_devices() -> None:
    refused("'0' on cuda:0 and '1' on cuda:1; attach wants one", _on(_Elsewhere, _Second))
    refused("'0' on cpu and '1' on cuda:0; attach wants one", _on(nn.Parameter, _Elsewhere))
    model = nets.mlp()
    model.register_buffer("table", torch.zeros(2, device="meta"))
    refused("'0.weight' on cpu and 'table' on meta; attach wants one", model)


def test_a_model_wrapped_in_ddp() -> None:
    for text in ranks.run(wrap_in_ddp):
        assert "attach its .module" in text


def wrap_in_ddp() -> str:
    ranks.join_torch()
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(nn.parallel.DistributedDataParallel(nets.mlp()))
    return str(problem.value)


# --- a model that changes after attach ---


def step(model: nn.Module, optimizer: torch.optim.Optimizer, width: int = nets.FEATURES) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("settings", [PLAIN, {**LOCAL, "interval_steps": 2}], ids=["h1", "h2"])
def test_memory_that_moves_is_followed(settings: dict[str, Any]) -> None:
    model, optimizer, attachment = alone(**settings)
    for _ in range(4):
        step(model, optimizer)
        attachment.wait()
        for param in model.parameters():
            param.data = param.data.clone()
    attachment.finish()
    attachment.close()


def test_a_parameter_that_is_resized() -> None:
    model, optimizer, attachment = alone(**PLAIN)
    step(model, optimizer)
    model[0].weight.data = torch.zeros(33, 7)
    optimizer.state.clear()
    optimizer.zero_grad()
    with pytest.raises(msdu.Error, match=r"'0.weight' was \[33, 12\].*is \[33, 7\].*attach again"):
        step(model, optimizer, 7)
    attachment.close()


def test_a_parameter_that_is_freed() -> None:
    model, optimizer, attachment = alone(**LOCAL)
    step(model, optimizer)
    model[2].weight.data = torch.empty(0)
    model[2].weight.grad = None
    with pytest.raises(msdu.Error, match=r"'2.weight' was \[17, 33\].*is \[0\]"):
        attachment.synchronize() if attachment.is_open else optimizer.step()
    attachment.close()


def test_a_parameter_that_is_replaced() -> None:
    model, optimizer, attachment = alone(**PLAIN)
    step(model, optimizer)
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())
    with pytest.raises(msdu.Error, match="'2.weight' was replaced by another one: attach again"):
        step(model, optimizer)
    attachment.close()
    attachment = msdu.attach(model, optimizer, **PLAIN)
    params = optimizer.param_groups[0]["params"]
    at = next(i for i, param in enumerate(params) if param.shape == model[0].bias.shape)
    params[at] = nn.Parameter(torch.zeros(model[0].bias.shape))
    with pytest.raises(msdu.Error, match="optimizer owns another parameter than when attached"):
        step(model, optimizer)
    attachment.close()


def test_parameters_that_are_tied_later() -> None:
    model = nn.Sequential(nn.Linear(nets.FEATURES, nets.FEATURES), nn.Linear(nets.FEATURES, 12))
    assert model[0].weight.shape == model[1].weight.shape
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = msdu.attach(model, optimizer, correct="average", **PLAIN)
    step(model, optimizer)
    model[1].weight = model[0].weight
    step(model, optimizer)
    attachment.finish()
    attachment.close()


def test_a_parameter_of_another_type() -> None:
    model, optimizer, attachment = alone(**PLAIN)
    model.double()
    with pytest.raises(msdu.Error, match=r"float32 on cpu when attached and is .* torch.float64"):
        model(torch.randn(4, nets.FEATURES, dtype=torch.float64)).sum().backward()
        optimizer.step()
    attachment.close()


def test_parameters_that_join_later() -> None:
    model = nets.mlp()
    model[0].requires_grad_(False)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = msdu.attach(model, optimizer, **PLAIN)
    model[0].requires_grad_(True)
    with pytest.raises(msdu.Error, match=r"'0\.weight' was frozen when attached"):
        step(model, optimizer)
    attachment.close()
    model[0].requires_grad_(True)
    attachment = msdu.attach(model, optimizer, **PLAIN)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(msdu.Error, match="had 6 parameters when attached and has 7 now"):
        step(model, optimizer)
    attachment.close()


def test_a_closed_attachment_says_so() -> None:
    model, optimizer, attachment = alone()
    attachment.close()
    attachment.close()
    step(model, optimizer)  # the hooks are gone
    with pytest.raises(msdu.Error, match="closed"):
        attachment.synchronize()
    assert "closed" in repr(attachment)


# --- ranks that disagree ---


def other_model() -> str:
    width = 8 + ranks.rank()
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(nn.Linear(width, 2))
    return f"{problem.value.status} {problem.value}"


def same_count() -> str:
    model = nn.Linear(4, 6, bias=False) if ranks.rank() else nn.Linear(6, 4, bias=False)
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(model)
    return str(problem.value)


def other_setting() -> str:
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(nets.mlp(), interval_steps=4 + ranks.rank())
    return str(problem.value)


def other_frozen() -> str:
    model = nets.mlp()
    model[0].weight.requires_grad_(ranks.rank() == 0)
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(model)
    return str(problem.value)


def other_values() -> str:
    model = nets.mlp(seed=ranks.rank())
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(model, broadcast="no")
    return str(problem.value)


def other_table() -> str:
    model = nets.mlp()
    model.register_buffer("mask", torch.tensor([True, ranks.rank() == 0, True]))
    with pytest.raises(msdu.Error) as problem:
        msdu.attach(model, broadcast="no")
    return str(problem.value)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (other_model, ("MSDU_ERR_MISMATCH", "ranks 0 and 1", "weight [2, 8]", "weight [2, 9]")),
        (same_count, ("weight [4, 6]", "weight [6, 4]")),
        (other_setting, ("interval_steps 4", "interval_steps 5")),
        (other_frozen, ("0.weight", "0.bias")),
        (other_values, ("0.weight", "broadcast")),
        (other_table, ("mask", "broadcast")),
    ],
)
def test_ranks_that_disagree_are_told_where(function: Any, words: tuple[str, ...]) -> None:
    for text in ranks.run(function):
        for word in words:
            assert word in text


def leave_early() -> str:
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = msdu.attach(model, optimizer, **PLAIN)
    if ranks.rank() == 1:
        nets.train(model, optimizer, range(2), 1)
        attachment.close()
        return "MSDU_ERR_PEER_LOST rank 1"
    with pytest.raises(msdu.Error) as problem:
        nets.train(model, optimizer, range(100), 0)
    attachment.close()
    return f"{problem.value.status} {problem.value}"


def test_a_rank_that_leaves_is_named() -> None:
    for text in ranks.run(leave_early):
        assert "MSDU_ERR_PEER_LOST" in text and "rank 1" in text


# --- no library ---


def test_no_library_is_found(tmp_path: Any) -> None:
    code = (
        "import msdu\ntry:\n    msdu.version()\nexcept msdu.Error as e:\n    print(e.status, e)\n"
    )
    missing = tmp_path / "nowhere.so"
    env = {**os.environ, "MSDU_LIBRARY": str(missing)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert out.startswith("MSDU_ERR_NOT_FOUND libmsdu was not found") and str(missing) in out
    assert "set MSDU_LIBRARY" in out


def test_importing_needs_neither_torch_nor_the_library() -> None:
    code = "import sys, msdu; assert 'torch' not in sys.modules; print(msdu.__version__)"
    env = {**os.environ, "MSDU_LIBRARY": "/nonexistent"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)


def test_errors_survive_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(msdu.Error(-7, "late")))
    assert (error.status, str(error), error.code) == ("MSDU_ERR_TIMEOUT", "late", -7)
