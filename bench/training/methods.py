# SPDX-License-Identifier: Apache-2.0
"""The methods that are compared, by name: one class each around a model and its optimizer."""
from __future__ import annotations

import collections
import datetime
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from . import daso, peers
from .method import Job, Method, Unavailable, own_address


class Ddp(Method):
    """DistributedDataParallel; a subclass registers a communication hook."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        bucket = job.take("bucket_mb", 25)  # DDP's default
        self.ddp = DistributedDataParallel(job.model, bucket_cap_mb=bucket,
                                           gradient_as_bucket_view=True)
        self.forward = self.ddp


class DdpFp16(Ddp):
    """Gradients in float16 on the wire."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


class DdpBf16(Ddp):
    """Gradients in bfloat16 on the wire."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        try:
            self.ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
        except TypeError as error:  # PyTorch allows it with NCCL only
            raise Unavailable(str(error)) from error


class PowerSgd(Ddp):
    """PowerSGD (arXiv:1905.13727) with error feedback and warm start, plain allreduce at first."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        start = max(2, job.count("start", job.total_steps // 20))
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=job.count("rank", 4), start_powerSGD_iter=start)
        self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


class Averaged(Method):
    """Local steps; parameters averaged by one of torch's model averagers after each."""

    def __init__(self, job: Job, averager: averagers.ModelAverager) -> None:
        super().__init__(job)
        self.averager = averager

    def step(self) -> None:
        self.optimizer.step()
        self.averager.average_parameters(self.job.model.parameters())


class Local(Averaged):
    """Plain local SGD: parameters averaged every `period` steps, from the first step on."""

    def __init__(self, job: Job) -> None:
        period = job.count("period", 8)
        super().__init__(job, averagers.PeriodicModelAverager(period, warmup_steps=0))


class PostLocal(Method):
    """Post-local SGD (arXiv:1808.07217): plain DDP for `warmup` steps, then local steps."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        start = job.count("warmup", job.total_steps // 10)
        period = job.count("period", 4)
        alone, _ = dist.new_subgroups(group_size=1)
        state = post_localSGD_hook.PostLocalSGDState(None, alone, start)
        ddp = DistributedDataParallel(job.model, gradient_as_bucket_view=True)
        ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        self.forward = ddp
        self.optimizer = PostLocalSGDOptimizer(
            job.optimizer, averagers.PeriodicModelAverager(period, warmup_steps=start))


class Hierarchical(Averaged):
    """Hierarchical SGD (arXiv:2010.12998): pairs average often, all ranks less often."""

    def __init__(self, job: Job) -> None:
        inner, outer = job.count("inner", 2), job.count("outer", 8)
        warmup = job.count("warmup", job.total_steps // 10)
        periods = collections.OrderedDict()
        if job.ranks > 2:
            periods[inner] = 2
        periods[outer] = job.ranks
        super().__init__(job, hierarchical_model_averager.HierarchicalModelAverager(
            periods, warmup_steps=warmup))
        alone, _ = dist.new_subgroups(group_size=1)
        state = post_localSGD_hook.PostLocalSGDState(None, alone, warmup)
        ddp = DistributedDataParallel(job.model, gradient_as_bucket_view=True)
        ddp.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        self.forward = ddp


class DilocoTorchft(Method):
    """DiLoCo (arXiv:2311.08105) as torchft has it: outer Nesterov on the mean pseudo-gradient."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        try:
            from torchft import Manager, ProcessGroupGloo
            from torchft.coordination import LighthouseServer
            from torchft.local_sgd import DiLoCo
        except ImportError as error:
            raise Unavailable(f"torchft cannot be imported: {error}") from error
        address = own_address()
        self.lighthouse = None
        if job.rank == 0:
            self.lighthouse = LighthouseServer(f"{address}:0", job.ranks, 60000)
        where = [f"http://{address}:{self.lighthouse.address().rsplit(':', 1)[1]}"
                 if self.lighthouse else ""]
        dist.broadcast_object_list(where, src=0)
        self.store = dist.TCPStore(  # type: ignore[attr-defined]
            address, 0, is_master=True, wait_for_workers=False)
        patience = datetime.timedelta(minutes=5)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=patience), load_state_dict=None, state_dict=None,
            min_replica_size=job.ranks, use_async_quorum=False, timeout=patience,
            quorum_timeout=patience, rank=0, world_size=1, store_addr=address,
            store_port=self.store.port, lighthouse_addr=where[0], hostname=address,
            replica_id=f"rank{job.rank}", init_sync=False)
        outer = torch.optim.SGD(job.model.parameters(), lr=job.take("outer_lr", 0.7),
                                momentum=job.take("outer_momentum", 0.9), nesterov=True)
        self.diloco = DiLoCo(self.manager, [job.model], job.optimizer, outer,
                             sync_every=job.count("period", 16))
        self.diloco.__enter__()

    def finish(self) -> None:
        self.diloco.__exit__(None, None, None)

    def close(self) -> None:
        dist.barrier()
        self.manager.shutdown(wait=False)
        dist.barrier()
        if self.lighthouse:
            self.lighthouse.shutdown()


class Ours(Method):
    """msdu.attach; the settings of the run are the library's."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        _use_checkout()
        try:
            import msdu
        except ImportError as error:
            raise Unavailable(f"the package msdu cannot be imported: {error}") from error
        settings, job.settings = job.settings, {}
        self.is_clock = settings.get("uneven") == "clock"
        self.msdu: Any = msdu
        self.attach(settings)

    def attach(self, settings: dict[str, str]) -> None:
        """Begin, or begin anew."""
        self.attachment = self.msdu.attach(self.job.model, self.job.optimizer, **settings)

    def bytes_sent(self) -> int:
        """By this rank so far, as the library counts."""
        return int(self.attachment.summary().bytes_sent)

    def state(self) -> str:
        """How ranks go on: "clock" where each makes steps of its own."""
        summary = self.attachment.summary()
        return str(getattr(summary, "state", "clock" if self.is_clock else "exact"))

    def settle(self) -> None:
        self.attachment.wait()

    def finish(self) -> None:
        self.attachment.finish()
        self.summary = self.attachment.summary()
        self.rows = self.attachment.rows()

    def close(self) -> None:
        self.attachment.close()

    def saved(self) -> Any:
        return self.attachment.state_dict()

    def load(self, state: Any) -> None:
        self.attachment.load_state_dict(state)

    def facts(self) -> dict[str, Any]:
        """Counters of rank 0, and where interval and wire changed."""
        names = ("rounds", "bytes_sent", "bytes_plain", "wait_ns", "elapsed_ns",
                 "interval_steps", "wire", "domain", "drift", "divergence", "reason")
        changes = [row for before, row in zip([None, *self.rows], self.rows) if before is None or
                   (before.interval_steps, before.wire_bits) != (row.interval_steps, row.wire_bits)]
        names += tuple(name for name in ("missed", "state", "network_ns", "straggler_ns", "hosts")
                       if hasattr(self.summary, name))
        return {f"msdu_{name}": getattr(self.summary, name) for name in names} | {
            "msdu_change_step": [row.step for row in changes],
            "msdu_change_interval": [row.interval_steps for row in changes],
            "msdu_change_bits": [row.wire_bits for row in changes]}


def _use_checkout() -> None:
    """Find the package and the library of this checkout where none is installed or named."""
    root = pathlib.Path(__file__).resolve().parents[2]
    library = root / "build" / "lib" / "libmsdu.so"
    if library.exists():
        os.environ.setdefault("MSDU_LIBRARY", str(library))
    sys.path.append(str(root / "python_shim"))


METHODS: dict[str, Callable[[Job], Method]] = {
    "none": Method, "ddp": Ddp, "ddp-fp16": DdpFp16, "ddp-bf16": DdpBf16, "powersgd": PowerSgd,
    "local": Local, "postlocal": PostLocal, "hierarchical": Hierarchical,
    "diloco": DilocoTorchft, "ours": Ours, "daso-rule": daso.DasoRule,
    **peers.METHODS,
}
TORCH_ONLY = ("none", "ddp", "ddp-fp16", "ddp-bf16", "powersgd", "local", "postlocal",
              "hierarchical")
WIRES = ("float32", "bfloat16", "float16", "int8", "int4", "int2", "ternary", "sparse")


def expand(name: str) -> tuple[str, dict[str, str]]:
    """Short names: local-8 is local with period 8; ours-h4-int4 a fixed interval and wire, with
    -block without overlap, so that no mean comes late; diloco-ours the published rule."""
    if match := re.fullmatch(r"local-(\d+)", name):
        return "local", {"period": match[1]}
    if match := re.fullmatch(rf"ours-h(\d+)-({'|'.join(WIRES)})(-block)?", name):
        implied = {"interval": "fixed", "interval_steps": match[1], "wire": match[2]}
        return "ours", {**implied, **({"overlap": "blocking"} if match[3] else {})}
    if name == "lb-bsp":  # DDP, with batches by the speeds that the ranks have (uneven_rank.py)
        return "ddp", {}
    if name == "diloco-ours":
        return "ours", {"interval": "fixed", "interval_steps": "16", "wire": "float32",
                        "domain": "parameter", "overlap": "blocking", "correct": "outer",
                        "warmup_steps": "0"}
    if name not in METHODS:
        raise ValueError(f"method {name!r} is none of {', '.join(METHODS)}, local-H, "
                         f"ours-hH-WIRE[-block], diloco-ours")
    return name, {}


def create(name: str, job: Job) -> Method:
    """The method of this name; settings of the run win over those that the name implies.

    Raises Unavailable with the reason, ValueError for a setting that the method does not have.
    """
    base, implied = expand(name)
    job.settings = {**implied, **job.settings}
    method = METHODS[base](job)
    if job.settings:
        raise ValueError(f"method {name} has no setting {', '.join(job.settings)}")
    return method
