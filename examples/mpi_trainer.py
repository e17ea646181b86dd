# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with mpi4py and NumPy; knows nothing of libmsdu.

mpirun -n 4 msdu run -- python3 mpi_trainer.py DATA sgd 1 45

DATA is a folder of idx files; then the optimizer (sgd or adam), the seed, the epochs.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
from mpi4py import MPI

BATCH = 8  # rows of a rank in a step
Array = np.ndarray


def read_idx(path: pathlib.Path) -> Array:
    """An idx file (MNIST's format, unpacked) of bytes as an array."""
    raw = path.read_bytes()
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def load(folder: pathlib.Path, prefix: str) -> tuple[Array, Array]:
    """Images as (count, pixels) in 0 .. 1, and labels (count)."""
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    return (images.reshape(len(images), -1) / 255.0).astype(np.float32), labels


class Net:
    """Three layers with ReLU between, and softmax."""

    def __init__(self, sizes: list[int], seed: int) -> None:
        draw = np.random.default_rng(seed)  # equal on all ranks
        self.parameters: list[Array] = []
        for inputs, outputs in zip(sizes[:-1], sizes[1:]):
            scale = np.sqrt(2 / inputs)
            self.parameters.append((draw.normal(size=(inputs, outputs)) * scale).astype("f4"))
            self.parameters.append(np.zeros(outputs, "f4"))

    def forward(self, x: Array) -> list[Array]:
        """Outputs of all layers, from the input on; the last is before the softmax."""
        outputs = [x]
        for at in range(0, len(self.parameters), 2):
            x = outputs[-1] @ self.parameters[at] + self.parameters[at + 1]
            outputs.append(np.maximum(x, 0) if at + 2 < len(self.parameters) else x)
        return outputs

    def backward(self, outputs: list[Array], labels: Array) -> tuple[float, list[Array]]:
        """Mean loss of the batch, and gradients in the order of the parameters."""
        scores = np.exp(outputs[-1] - outputs[-1].max(axis=1, keepdims=True))
        share = scores / scores.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(-np.log(share[rows, labels] + 1e-12).mean())
        error = share
        error[rows, labels] -= 1
        error /= len(labels)
        gradients: list[Array] = []
        for at in range(len(self.parameters) - 2, -1, -2):
            x = outputs[at // 2]
            gradients[:0] = [x.T @ error, error.sum(axis=0)]
            error = (error @ self.parameters[at].T) * (x > 0)
        return loss, gradients


class Sgd:
    """With momentum 0.9."""

    def __init__(self, parameters: list[Array]) -> None:
        self.velocity = [np.zeros_like(p) for p in parameters]

    def step(self, parameters: list[Array], gradients: list[Array]) -> None:
        """One update in place."""
        for p, g, v in zip(parameters, gradients, self.velocity):
            v *= 0.9
            v += g
            p -= 0.02 * v


class Adam:
    """As its paper has it."""

    def __init__(self, parameters: list[Array]) -> None:
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]
        self.steps = 0

    def step(self, parameters: list[Array], gradients: list[Array]) -> None:
        """One update in place."""
        self.steps += 1
        rate = 0.001 * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for p, g, m, v in zip(parameters, gradients, self.first, self.second):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= (rate * m / (np.sqrt(v) + 1e-8)).astype("f4")


def main() -> None:
    """Train, and print the test accuracy."""
    folder, optimizer, seed, epochs = sys.argv[1:]
    comm = MPI.COMM_WORLD
    images, labels = load(pathlib.Path(folder), "train")
    test_images, test_labels = load(pathlib.Path(folder), "t10k")
    net = Net([images.shape[1], 512, 256, int(labels.max()) + 1], int(seed))
    optim = Adam(net.parameters) if optimizer == "adam" else Sgd(net.parameters)
    steps = len(images) // (BATCH * comm.size)
    for epoch in range(int(epochs)):
        order = np.random.default_rng([int(seed), epoch]).permutation(len(images))
        total = 0.0
        for step in range(steps):
            at = (step * comm.size + comm.rank) * BATCH
            mine = order[at : at + BATCH]
            loss, gradients = net.backward(net.forward(images[mine]), labels[mine])
            for gradient in gradients:
                comm.Allreduce(MPI.IN_PLACE, gradient)
                gradient /= comm.size
            optim.step(net.parameters, gradients)
            total += comm.allreduce(loss) / comm.size
        if comm.rank == 0 and (epoch + 1) % 10 == 0:
            print(f"epoch {epoch + 1} loss {total / steps:.5f}", flush=True)
    if comm.rank == 0:
        found = net.forward(test_images)[-1].argmax(axis=1)
        print(f"test accuracy {100 * float((found == test_labels).mean()):.2f} %", flush=True)


main()
