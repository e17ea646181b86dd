# SPDX-License-Identifier: Apache-2.0
"""Tests of the host's tensors once more on a real GPU: all ranks on the one, each as if on a host of
its own (NCCL_HOSTID), over sockets on lo. **Never run so far: no machine had one.** Run by
scripts/gpu.sh; needs torch with CUDA and libmsdu with MSDU_WITH_NCCL."""

from __future__ import annotations

import os

import pytest
import torch
from test_device import (  # noqa: F401 - found here, they run here, without the stand-in
    test_a_fixed_interval_equals_averaging_by_torch,
    test_a_resumed_run_is_the_same_to_the_bit,
    test_accumulated_gradients_equal_ddp,
    test_an_infinity_skips_the_step_on_all_ranks_as_with_ddp,
    test_buffers_are_averaged_with_the_parameters,
    test_clipping_and_schedules_see_the_mean_gradient,
    test_synchronize_makes_ranks_equal_and_training_goes_on,
    test_two_ranks_equal_ddp_to_the_bit,
    test_uneven_batches_are_means_over_who_has_one,
)

import msdu
from msdu import _context

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # leaves CUDA alone in this process
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
try:
    _context.Context({"backend": "nccl", "ranks": 2, "rank": 0}).destroy()
except msdu.Error as problem:
    pytest.skip(f"no module nccl: {problem}", allow_module_level=True)


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PLACE", "cuda")
