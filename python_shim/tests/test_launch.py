# SPDX-License-Identifier: Apache-2.0
"""Where ranks meet: under torchrun, with and without a process group, by variables alone; and the
wheel in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nets
import pytest
import ranks
import torch
import torch.distributed as dist
from forks import free_port
from nets import OPTIMIZERS
from test_parity import PLAIN

import msdu

PACKAGE = Path(__file__).resolve().parents[1]

SCRIPT = """
import sys
import torch, msdu
{before}
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.nn.Linear(2, 2)
with msdu.attach(model, optimizer) as attachment, msdu.attach(other) as second:
    torch.manual_seed(attachment.rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
    attachment.finish()
    second.finish()
    total = sum(p.double().sum().item() for p in model.parameters())
    # one write, or lines of several ranks may mix
    sys.stdout.write(f"result {{attachment.rank}} {{attachment.ranks}} {{total!r}}\\n")
{after}
"""


def results(text: str) -> dict[int, tuple[int, float]]:
    lines = [line.split() for line in text.splitlines() if line.startswith("result ")]
    return {int(rank): (int(size), float(total)) for _, rank, size, total in lines}


def check_equal(text: str, size: int = 2) -> None:
    found = results(text)
    assert sorted(found) == list(range(size)), text
    assert len({total for _, total in found.values()}) == 1
    assert all(one == size for one, _ in found.values())


def write(folder: Path, before: str = "", after: str = "") -> str:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(before=before, after=after))
    return str(path)


def torchrun(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         "--master-port", str(free_port()), script],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torchrun_without_a_process_group(tmp_path: Path) -> None:
    check_equal(torchrun(write(tmp_path)))


def test_torchrun_with_a_process_group_made_before_and_after(tmp_path: Path) -> None:
    made = "torch.distributed.init_process_group('gloo')"
    check_equal(torchrun(write(tmp_path, before=made)))
    check_equal(torchrun(write(tmp_path, after=made)))


def by_variables(script: str, env: dict[str, str]) -> str:
    shared = {**os.environ, **env, "WORLD_SIZE": "2"}
    jobs = [
        subprocess.Popen(
            [sys.executable, script],
            env={**shared, "RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        return "".join(job.communicate(timeout=100)[0] for job in jobs)
    finally:
        for job in jobs:
            job.kill()


def test_master_variables_alone(tmp_path: Path) -> None:
    """No store is served there: rank 0 serves one, which a process group made later shares."""
    script = write(tmp_path, after="torch.distributed.init_process_group('gloo')")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    check_equal(by_variables(script, env))


def test_a_rendezvous_that_is_named(tmp_path: Path) -> None:
    check_equal(by_variables(write(tmp_path), {"MSDU_RENDEZVOUS": f"file://{tmp_path}"}))


def in_groups() -> tuple[int, int, torch.Tensor]:
    """Ranks 0, 2 and ranks 1, 3 train a model each, at the same time."""
    rank, _ = ranks.join_torch()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    model = nets.mlp(seed=rank)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, process_group=groups[rank % 2], **PLAIN) as attachment:
        nets.train(model, optimizer, range(4), rank)
        attachment.finish()
        return attachment.rank, attachment.ranks, nets.flat(model)


def test_groups_of_a_job() -> None:
    found = ranks.run(in_groups, ranks=4)
    assert [(rank, size) for rank, size, _ in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    values = [value for _, _, value in found]
    assert torch.equal(values[0], values[2]) and torch.equal(values[1], values[3])
    assert not torch.equal(values[0], values[1])


def with_torchs_gloo() -> bool:
    """Torch's own Gloo and the module's in one process, in turn."""
    rank, size = ranks.join_torch()
    model = nets.mlp()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with msdu.attach(model, optimizer, **PLAIN):
        for step in range(5):
            nets.train(model, optimizer, range(step, step + 1), rank)
            total = torch.ones(1000)
            dist.all_reduce(total)
            assert float(total.sum()) == 1000.0 * size
    return True


def test_both_gloos_in_one_process() -> None:
    assert ranks.run(with_torchs_gloo) == [True, True]


# --- the wheel ---


def package_in(folder: Path) -> Path:
    """The package as if it lay there: what setuptools leaves beside it would be taken for an
    installed one by the next pip that finds the package on PYTHONPATH."""
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "msdu"):
        (folder / name).symlink_to(PACKAGE / name)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an empty environment with the wheel in it. Its torch is this environment's, by a
    .pth file: a second copy of its libraries would cost more than all other tests."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    library = os.environ.get("MSDU_LIBRARY")
    if not library:
        pytest.skip("MSDU_LIBRARY does not say which library to pack")
    source = package_in(folder / "source")
    env = {**os.environ, "MSDU_LIBRARY_DIR": str(Path(library).parent)}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, source],
        check=True, env=env,
    )  # fmt: skip
    (wheel,) = folder.glob("msdu-*-py3-none-*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-index", "--no-deps", wheel],
        check=True, env={**env, "PYTHONPATH": ""},
    )  # fmt: skip
    packages = next((folder / "env").glob("lib/python*/site-packages"))
    (packages / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_trains_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    script = write(tmp_path, after="sys.stdout.write(msdu._abi.library().path + '\\n')")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MSDU_") and name != "PYTHONPATH"
    }
    env.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    jobs = [
        subprocess.Popen(
            [installed, script],
            env={**env, "RANK": str(rank)},
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        text = "".join(job.communicate(timeout=100)[0] for job in jobs)
    finally:
        for job in jobs:
            job.kill()
    check_equal(text)
    assert str(installed.parents[1] / "lib") in text


def test_the_wheel_tells_torchrun_of_its_rendezvous(installed: Path) -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "found = entry_points(group='torchrun.handlers')['msdu'].load()()\n"
        "print(found.__name__)"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([installed, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "Handler\n", done.stderr


def test_the_wheel_says_what_it_misses(tmp_path: Path) -> None:
    """No library anywhere: one line, before anything is built."""
    pytest.importorskip("setuptools")
    env = {**os.environ, "MSDU_LIBRARY_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "-d", tmp_path / "out"],
        cwd=package_in(tmp_path / "source"), env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"msdu: no libmsdu.so in {tmp_path}" in done.stderr
