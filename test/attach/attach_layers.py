# SPDX-License-Identifier: Apache-2.0
"""A mpi4py trainer with equal layers, as attach_layers.c: `attach_layers.py LAYERS STEPS [reverse]
[saves]`, the last of which is behind MPI_Finalize.

Prints how far ranks are apart, how far the mean is from the best, and a fingerprint.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

RATE = 0.05
MOMENTUM = 0.9


def main() -> None:
    """Least squares, one tensor after another, by SGD with momentum."""
    comm = MPI.COMM_WORLD
    layers, steps = int(sys.argv[1]), int(sys.argv[2])
    sizes = [5000, *[768, 300, 1024, 256] * layers, 900]
    order = range(len(sizes))
    targets = [
        [np.sin(1.0 + rank * 2.7 + k * 0.37 + np.arange(size) * 0.11) for k, size in enumerate(sizes)]
        for rank in range(comm.size)
    ]
    weights = [np.zeros(size) for size in sizes]
    velocities = [np.zeros(size) for size in sizes]
    gradients = [np.zeros(size) for size in sizes]
    for _ in range(steps):
        for k in reversed(order) if "reverse" in sys.argv else order:
            np.subtract(weights[k], targets[comm.rank][k], out=gradients[k])
            comm.Allreduce(MPI.IN_PLACE, gradients[k], op=MPI.SUM)
        for k in order:
            velocities[k] *= MOMENTUM
            velocities[k] += gradients[k] / comm.size
            weights[k] -= RATE * velocities[k]
    everywhere = comm.gather(weights)
    if comm.rank == 0:
        apart = max(np.ptp([rank[k] for rank in everywhere], axis=0).max() for k in order)
        best = [np.mean([rank[k] for rank in targets], axis=0) for k in order]
        away = max(np.abs(weights[k] - best[k]).max() for k in order)
        prints = sum(float((weights[k] * np.cos(np.arange(sizes[k]))).sum()) for k in order)
        print(f"apart {apart:.3g} away {away:.3g} print {prints:.12g}")
    if "saves" in sys.argv:
        rank = comm.rank
        MPI.Finalize()
        print(f"rank {rank} saved")


main()
