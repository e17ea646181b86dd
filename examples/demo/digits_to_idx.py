# SPDX-License-Identifier: Apache-2.0
"""Write scikit-learn's digits (1,797 images of 8 x 8) as the four idx files of MNIST's naming."""

import pathlib
import struct
import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 20
TEST_SHARE = 0.2
LARGEST_PIXEL = 16  # the digits count ink in 0 .. 16, idx files hold bytes


def idx_bytes(array):
    """An idx file of unsigned bytes: magic, dimensions (big endian), values."""
    header = struct.pack(">I", 0x0800 | array.ndim)
    header += struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(folder, prefix, images, labels):
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def write_digits(folder):
    digits = load_digits()
    images = np.rint(digits.images * (255 / LARGEST_PIXEL))
    train_x, test_x, train_y, test_y = train_test_split(
        images,
        digits.target,
        test_size=TEST_SHARE,
        random_state=SPLIT_SEED,
        stratify=digits.target,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_set(folder, "train", train_x, train_y)
    write_set(folder, "t10k", test_x, test_y)
    return len(train_x), len(test_x)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: digits_to_idx.py FOLDER")
    train_count, test_count = write_digits(pathlib.Path(sys.argv[1]))
    print(f"digits: {train_count} images for training, {test_count} for testing")
