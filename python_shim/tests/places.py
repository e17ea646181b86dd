# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a test have their tensors: the host's memory, or what TEST_PLACE says.

"standin": the stand-in for CUDA and NCCL of test/standin (see standin.py). "cuda": a real GPU, all
ranks on the one; each process says that it is a host of its own, or NCCL refuses the second.
"""

from __future__ import annotations

import os
from typing import Any, Callable

_KEPT = ("TEST_PLACE", "TEST_STANDIN", "MSDU_MODULE_PATH")


def environment() -> dict[str, str]:
    """What ranks inherit; those of a fork server do not by themselves."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def arrive() -> None:
    """In a rank, before its test begins."""
    place = os.environ.get("TEST_PLACE")
    if place == "standin":
        import standin

        standin.use()
    elif place == "cuda":
        _use_cuda()


def _use_cuda() -> None:
    """Models and batches of the tests are made on the GPU."""
    import nets
    import torch

    os.environ["NCCL_HOSTID"] = f"msdu-{os.environ['RANK']}"
    for name, value in (("SOCKET_IFNAME", "lo"), ("IB_DISABLE", "1"), ("NET", "Socket")):
        os.environ.setdefault(f"NCCL_{name}", value)
    torch.cuda.set_device(0)
    torch.backends.cudnn.allow_tf32 = False

    def there(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            found = make(*args, **kwargs)
            if isinstance(found, tuple):
                return tuple(one.cuda() for one in found)
            return found.cuda()

        return made

    for name in ("mlp", "convnet", "batch", "image_batch"):
        setattr(nets, name, there(getattr(nets, name)))
