# SPDX-License-Identifier: Apache-2.0
"""Writes CIFAR-100 (binary version) as idx files with its 20 coarse labels, for examples/trainer.

cifar100_to_idx.py DIR_WITH_TRAIN_BIN OUT_DIR [TRAIN_IMAGES TEST_IMAGES]
"""
import pathlib
import struct
import sys

RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, three planes


def convert(source, images, labels, count):
    data = source.read_bytes()[: count * RECORD]
    if len(data) < count * RECORD:
        sys.exit(f"{source}: fewer than {count} records")
    records = [data[i * RECORD : (i + 1) * RECORD] for i in range(count)]
    images.write_bytes(struct.pack(">IIII", 2051, count, 96, 32) + b"".join(r[2:] for r in records))
    labels.write_bytes(struct.pack(">II", 2049, count) + bytes(r[0] for r in records))


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    train, test = (int(text) for text in sys.argv[3:5]) if len(sys.argv) > 4 else (20000, 5000)
    out.mkdir(parents=True, exist_ok=True)
    for name, prefix, count in (("train.bin", "train", train), ("test.bin", "t10k", test)):
        convert(source / name, out / f"{prefix}-images-idx3-ubyte",
                out / f"{prefix}-labels-idx1-ubyte", count)


if len(sys.argv) < 3:
    sys.exit(__doc__)
main()
