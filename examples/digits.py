# SPDX-License-Identifier: Apache-2.0
"""Images of digits and a small convolutional net, for the PyTorch examples beside this file."""

import pathlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset


def read_idx(path):
    """An idx file (MNIST's format, unpacked) of bytes as an array."""
    raw = pathlib.Path(path).read_bytes()
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def from_idx(folder, prefix):
    images = read_idx(pathlib.Path(folder) / f"{prefix}-images-idx3-ubyte")
    labels = read_idx(pathlib.Path(folder) / f"{prefix}-labels-idx1-ubyte")
    return images / 255.0, labels


def from_sklearn():
    """1,797 images of 8 x 8: every fifth is for testing."""
    from sklearn.datasets import load_digits

    data = load_digits()
    is_test = np.arange(len(data.target)) % 5 == 0
    images = data.images / 16.0
    return (images[~is_test], data.target[~is_test]), (images[is_test], data.target[is_test])


def dataset(images, labels):
    x = torch.tensor(images, dtype=torch.float32).unsqueeze(1)
    return TensorDataset(x, torch.tensor(labels, dtype=torch.int64))


def load(folder=None):
    """Training and test set: (1, height, width) in 0 .. 1, and the digit. From a folder of the
    four idx files of MNIST, or scikit-learn's digits."""
    if folder is None:
        train, test = from_sklearn()
    else:
        train, test = from_idx(folder, "train"), from_idx(folder, "t10k")
    return dataset(*train), dataset(*test)


def make_net():
    """For images of any size; BatchNorm, so that there are buffers too."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def count_correct(net, data):
    """How many of a data set the net gets right."""
    net.eval()
    with torch.no_grad():
        batches = torch.utils.data.DataLoader(data, batch_size=256)
        return sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
