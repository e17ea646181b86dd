# SPDX-License-Identifier: Apache-2.0
"""The C library's allocator, set alike for everything that is compared."""
from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_memory() -> None:
    """What is freed stays with the process (glibc; elsewhere nothing happens).

    By default glibc gives gradients or activations that lie at the end of the heap back to the
    system, and takes them again page by page in the next step: up to 45 % of a step, and whom it
    hits is chance. Users of PyTorch on a CPU preload another allocator for this.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest there is
        mallopt(M_TRIM_THRESHOLD, 1 << 30)
