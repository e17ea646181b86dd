# SPDX-License-Identifier: Apache-2.0
"""A trainer with mpi4py and NumPy that knows nothing of the library: prints a loss each step."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI


def main() -> None:
    """Least squares by SGD with momentum; gradients, losses and an object are reduced."""
    comm = MPI.COMM_WORLD
    draw = np.random.default_rng(comm.rank)
    truth = np.random.default_rng(99).normal(size=4000).astype(np.float32)
    weight = np.zeros_like(truth)
    velocity = np.zeros_like(truth)
    for step in range(60):
        error = weight - truth - draw.normal(size=truth.size).astype(np.float32)
        mean = np.empty_like(error)
        comm.Allreduce(error, mean, op=MPI.SUM)
        velocity = 0.9 * velocity + mean / comm.size
        weight = weight - 0.02 * velocity
        loss = comm.allreduce(float(np.square(weight - truth).mean()))
        if comm.rank == 0:
            print(f"step {step} loss {loss / comm.size!r}", flush=True)


main()
