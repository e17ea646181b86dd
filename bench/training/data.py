# SPDX-License-Identifier: Apache-2.0
"""Data sets of the comparison, read from a folder, and each rank's shard of an epoch.

Nothing is downloaded and nothing is copied into the project. A data set is either found unpacked
in the folder or as the archive that `ARCHIVES` names; what has to be decoded is decoded once, into
a cache folder. The order of samples depends on the seed and the epoch, the augmentation on the
rank as well, so that a run can be repeated and every method sees the same samples.
"""
from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

ARCHIVES = {
    "cifar100": ("cifar-100-binary.tar.xz",),
    "cifar100-coarse": ("cifar-100-binary.tar.xz",),
    "mnist": ("mnist-idx.tar.xz",),
    "tinyimagenet": ("tiny-imagenet-32-train.tar.xz", "tiny-imagenet-32-val.tar.xz"),
    "shakespeare": (),
    "shakespeare-bytes": (),
    "stdlib": (),
    "synthetic": (),
    "synthetic-text": (),
}
CIFAR_RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, three planes of 32x32
PAD = 4  # largest shift of an augmented image, pixels, as is usual for CIFAR


class MissingData(Exception):
    """The folder does not hold what a data set needs; the text names it."""


@dataclasses.dataclass
class Split:
    """Samples: images (n, 3, 32, 32) uint8 with labels (n,), or text (characters,) uint8.

    is_augmented  images may be shifted and mirrored
    """

    x: np.ndarray
    y: np.ndarray | None
    is_augmented: bool = True

    def __len__(self) -> int:
        return len(self.x)


@dataclasses.dataclass
class Dataset:
    """A training and a test split, and what a model must know of them."""

    name: str
    train: Split
    test: Split
    classes: int  # labels, or size of the alphabet

    @property
    def is_text(self) -> bool:
        return self.train.y is None


def cache_folder(data: pathlib.Path, wanted: str | None) -> pathlib.Path:
    """Where decoded data goes: `wanted`, else beside the data, else in the user's cache."""
    beside = data / ".msdu-cache"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    places = [pathlib.Path(wanted)] if wanted else [beside, pathlib.Path(home) / "msdu-train"]
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                return place
        except OSError:
            continue
    raise MissingData(f"no folder for decoded data can be written: {', '.join(map(str, places))}")


def _cached(cache: pathlib.Path, name: str, decode: Callable[[], dict[str, np.ndarray]]
            ) -> dict[str, np.ndarray]:
    """Arrays of `decode`, memory-mapped from one .npy file each; ranks share the pages."""
    folder = cache / name
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            whole = pathlib.Path(scratch) / name
            whole.mkdir()
            for key, array in decode().items():
                np.save(whole / f"{key}.npy", array)
            try:
                whole.rename(folder)  # another process may have been first: then take its files
            except OSError:
                if not folder.is_dir():
                    raise
    return {file.stem: np.load(file, mmap_mode="r") for file in folder.glob("*.npy")}


def _missing(name: str, data: pathlib.Path, unpacked: str) -> MissingData:
    archives = " and ".join(ARCHIVES[name])
    return MissingData(f"{name}: {data} holds neither {unpacked} nor {archives}")


def _members(archive: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of a tar archive, in its order."""
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file.read()


def _decode_cifar(raw: bytes, where: str) -> dict[str, np.ndarray]:
    if not raw or len(raw) % CIFAR_RECORD:
        raise MissingData(f"cifar100: {where} is not a whole number of records of {CIFAR_RECORD}")
    records = np.frombuffer(raw, np.uint8).reshape(-1, CIFAR_RECORD)
    return {"x": records[:, 2:].reshape(-1, 3, 32, 32), "y": records[:, 1].astype(np.int64)}


def _cifar_files(data: pathlib.Path) -> dict[str, bytes]:
    """Contents of train.bin and test.bin (official binary layout)."""
    for folder in (data, data / "cifar-100-binary"):
        if (folder / "train.bin").is_file() and (folder / "test.bin").is_file():
            return {name: (folder / name).read_bytes() for name in ("train.bin", "test.bin")}
    archive = data / ARCHIVES["cifar100"][0]
    if not archive.is_file():
        raise _missing("cifar100", data, "train.bin and test.bin")
    found = {pathlib.PurePath(name).name: raw for name, raw in _members(archive)
             if name.endswith(("train.bin", "test.bin"))}
    if set(found) != {"train.bin", "test.bin"}:
        raise MissingData(f"cifar100: {archive} lacks train.bin or test.bin")
    return found


def _load_cifar(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    def decode() -> dict[str, np.ndarray]:
        files = _cifar_files(data)
        parts = {split: _decode_cifar(files[f"{split}.bin"], f"{split}.bin")
                 for split in ("train", "test")}
        return {f"{split}_{key}": value for split, part in parts.items()
                for key, value in part.items()}

    return _images("cifar100", _cached(cache, "cifar100", decode), 100)


def _load_coarse(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    """CIFAR-100 with its 20 coarse labels; images are those of cifar100."""
    def decode() -> dict[str, np.ndarray]:
        files = _cifar_files(data)
        return {f"{split}_y": np.frombuffer(files[f"{split}.bin"], np.uint8)
                .reshape(-1, CIFAR_RECORD)[:, 0].astype(np.int64) for split in ("train", "test")}

    fine = _load_cifar(data, cache)
    labels = _cached(cache, "cifar100-coarse", decode)
    return Dataset("cifar100-coarse", Split(fine.train.x, labels["train_y"]),
                   Split(fine.test.x, labels["test_y"]), 20)


MNIST_FILES = {"train_x": "train-images-idx3-ubyte", "train_y": "train-labels-idx1-ubyte",
               "test_x": "t10k-images-idx3-ubyte", "test_y": "t10k-labels-idx1-ubyte"}


def _idx_files(data: pathlib.Path) -> dict[str, bytes]:
    """Contents of the four files of MNIST, by MNIST_FILES' keys."""
    for folder in (data, data / "mnist"):
        if all((folder / name).is_file() for name in MNIST_FILES.values()):
            return {key: (folder / name).read_bytes() for key, name in MNIST_FILES.items()}
    archive = data / ARCHIVES["mnist"][0]
    if not archive.is_file():
        raise _missing("mnist", data, MNIST_FILES["train_x"])
    found = {pathlib.PurePath(name).name: raw for name, raw in _members(archive)}
    if not found.keys() >= set(MNIST_FILES.values()):
        raise MissingData(f"mnist: {archive} lacks one of {', '.join(MNIST_FILES.values())}")
    return {key: found[name] for key, name in MNIST_FILES.items()}


def _load_mnist(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    """Digits in the middle of 32x32 pixels, three equal planes."""
    def decode() -> dict[str, np.ndarray]:
        files = _idx_files(data)
        digits = {key: np.frombuffer(files[key], np.uint8, offset=16).reshape(-1, 1, 28, 28)
                  for key in ("train_x", "test_x")}
        return {**{key: np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2))) for key, x in digits.items()},
                **{key: np.frombuffer(files[key], np.uint8, offset=8).astype(np.int64)
                   for key in ("train_y", "test_y")}}

    arrays = _cached(cache, "mnist", decode)

    def split(name: str) -> Split:
        x = arrays[f"{name}_x"]
        return Split(np.broadcast_to(x, (len(x), 3, 32, 32)), arrays[f"{name}_y"], False)

    return Dataset("mnist", split("train"), split("test"), 10)


def _load_stdlib(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    """Bytes of the sources of this Python's own library, file by file in an order by chance; one
    file in twenty is for validation. Needs no folder; another Python has other sources."""
    del data, cache
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py")
                   if "site-packages" not in file.parts and "dist-packages" not in file.parts)
    order = np.random.default_rng(0).permutation(len(files))
    texts = [np.frombuffer(files[i].read_bytes(), np.uint8) for i in order]
    training = np.concatenate([part for i, part in enumerate(texts) if i % 20])
    return Dataset("stdlib", Split(training, None), Split(np.concatenate(texts[::20]), None), 256)


def _images(name: str, arrays: dict[str, np.ndarray], classes: int) -> Dataset:
    return Dataset(name, Split(arrays["train_x"], arrays["train_y"]),
                   Split(arrays["test_x"], arrays["test_y"]), classes)


def _tiny_files(data: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Every file of tiny-imagenet-32, from the folder or from both archives."""
    folder = data / "tiny-imagenet-32"
    if (folder / "train").is_dir() and (folder / "val").is_dir():
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                yield str(file.relative_to(data)), file.read_bytes()
        return
    archives = [data / name for name in ARCHIVES["tinyimagenet"]]
    if not all(archive.is_file() for archive in archives):
        raise _missing("tinyimagenet", data, "tiny-imagenet-32/train and tiny-imagenet-32/val")
    for archive in archives:
        yield from _members(archive)


def _decode_tiny(data: pathlib.Path) -> dict[str, np.ndarray]:
    """Training label: the folder's name; label of a test image: val_annotations.txt."""
    from PIL import Image  # here, because only this data set needs Pillow

    images: dict[str, list[tuple[np.ndarray, str]]] = {"train": [], "test": []}
    annotations = ""
    for name, raw in _tiny_files(data):
        if name.endswith("val_annotations.txt"):
            annotations = raw.decode()
        elif name.endswith(".JPEG"):
            pixels = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB")).transpose(2, 0, 1)
            parts = pathlib.PurePath(name).parts
            is_train = "train" in parts
            key = parts[parts.index("train") + 1] if is_train else parts[-1]
            images["train" if is_train else "test"].append((pixels, key))
    label_of = dict(line.split("\t")[:2] for line in annotations.splitlines())
    number = {word: i for i, word in enumerate(sorted({key for _, key in images["train"]}))}
    if not images["train"] or not images["test"] or not label_of:
        raise MissingData(f"tinyimagenet: images or val_annotations.txt are missing in {data}")
    arrays = {}
    for split, pairs in images.items():
        words = (key if split == "train" else label_of[key] for _, key in pairs)
        arrays[f"{split}_x"] = np.stack([pixels for pixels, _ in pairs])
        arrays[f"{split}_y"] = np.array([number[word] for word in words], np.int64)
    # files come class by class, and a run may take the first samples only
    mixed = np.random.default_rng(0).permutation(len(arrays["train_y"]))
    return {**arrays, "train_x": arrays["train_x"][mixed], "train_y": arrays["train_y"][mixed]}


def _load_tiny(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    arrays = _cached(cache, "tinyimagenet-mixed", lambda: _decode_tiny(data))
    return _images("tinyimagenet", arrays, 200)


def _load_shakespeare(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    del cache
    file = data / "tinyshakespeare.txt"
    if not file.is_file():
        raise MissingData(f"shakespeare: {data} does not hold tinyshakespeare.txt")
    text = np.frombuffer(file.read_bytes(), np.uint8)
    alphabet, ids = np.unique(text, return_inverse=True)
    ids = ids.astype(np.uint8)
    cut = len(ids) * 9 // 10  # the last tenth is for validation, as is usual for this text
    return Dataset("shakespeare", Split(ids[:cut], None), Split(ids[cut:], None), len(alphabet))


def _load_shakespeare_bytes(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    """The same as bytes, for a model that was trained on other text."""
    known = _load_shakespeare(data, cache)
    alphabet = np.unique(np.frombuffer((data / "tinyshakespeare.txt").read_bytes(), np.uint8))
    return Dataset("shakespeare-bytes", Split(alphabet[known.train.x], None),
                   Split(alphabet[known.test.x], None), 256)


def _load_synthetic(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    """Small images whose class is the brightest of ten columns: for tests, needs no folder."""
    del data, cache
    rng = np.random.default_rng(1)

    def split(count: int) -> Split:
        y = rng.integers(0, 10, count)
        x = rng.integers(0, 128, (count, 3, 32, 32), np.uint8)
        for image, label in zip(x, y):
            image[:, :, 3 * label:3 * label + 3] += 100
        return Split(x, y.astype(np.int64))

    return Dataset("synthetic", split(512), split(128), 10)


def _load_synthetic_text(data: pathlib.Path, cache: pathlib.Path) -> Dataset:
    """Text in which each character follows from the one before: for tests, needs no folder."""
    del data, cache
    text = (np.cumsum(np.arange(20000) % 7) % 11).astype(np.uint8)
    return Dataset("synthetic-text", Split(text[:18000], None), Split(text[18000:], None), 11)


LOADERS: dict[str, Callable[[pathlib.Path, pathlib.Path], Dataset]] = {
    "cifar100": _load_cifar, "tinyimagenet": _load_tiny, "shakespeare": _load_shakespeare,
    "cifar100-coarse": _load_coarse, "mnist": _load_mnist, "stdlib": _load_stdlib,
    "shakespeare-bytes": _load_shakespeare_bytes,
    "synthetic": _load_synthetic, "synthetic-text": _load_synthetic_text,
}


def load(name: str, data: str | None, cache: str | None = None) -> Dataset:
    """Load a data set by name.

    data   folder that holds it; not needed for stdlib and the synthetic ones
    cache  folder for decoded data; None: beside the data, or the user's cache folder
    Raises MissingData with one line that says what is missing.
    """
    if name.startswith(("synthetic", "stdlib")):
        return LOADERS[name](pathlib.Path(), pathlib.Path())
    if not data or not pathlib.Path(data).is_dir():
        raise MissingData(f"{name}: --data must name a folder, {data!r} is none")
    folder = pathlib.Path(data)
    return LOADERS[name](folder, cache_folder(folder, cache))


def _generator(*numbers: int) -> torch.Generator:
    """A generator whose state follows from all numbers; nearby ones give unrelated streams."""
    seed = np.random.SeedSequence(numbers).generate_state(2)
    return torch.Generator().manual_seed((int(seed[0]) << 31) ^ int(seed[1]))


@dataclasses.dataclass(frozen=True)
class Shards:
    """How training samples are dealt to ranks.

    samples  samples of the training split that are used; text: sequences of `length` characters
    """

    samples: int
    ranks: int
    rank: int
    batch: int
    seed: int
    length: int = 64

    @property
    def steps(self) -> int:
        """Batches of each rank in an epoch, the same number for all."""
        return self.samples // (self.ranks * self.batch)

    def order(self, epoch: int) -> Tensor:
        """This rank's sample numbers, (steps, batch): disjoint from all other ranks'."""
        order = torch.randperm(self.samples, generator=_generator(self.seed, epoch, 1))
        used = self.steps * self.ranks * self.batch
        return order[:used].view(self.ranks, self.steps, self.batch)[self.rank]


def normalized(images: Tensor) -> Tensor:
    """uint8 (n, 3, 32, 32) to float32 of about zero mean and unit variance, channels last."""
    return ((images.float() - 120.0) / 65.0).contiguous(memory_format=torch.channels_last)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (uint8) shifted by up to PAD pixels either way, and mirrored half of the time."""
    count = len(images)
    padded = torch.nn.functional.pad(images, (PAD,) * 4)
    shifts = torch.randint(0, 2 * PAD + 1, (count, 2), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    rows = shifts[:, :1] + torch.arange(32)
    columns = shifts[:, 1:] + torch.arange(32)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    sample = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]
                                      ].permute(0, 3, 1, 2)


def batch_of(split: Split, numbers: Tensor, generator: torch.Generator, length: int = 64,
             offset: int = 0) -> tuple[Tensor, Tensor]:
    """The samples of these numbers, images augmented where the split allows it."""
    if split.y is None:
        return _sequences(split.x, numbers * length + offset, length)
    images = torch.from_numpy(split.x[numbers.numpy()])
    if split.is_augmented:
        images = augmented(images, generator)
    return (normalized(images), torch.from_numpy(split.y[numbers.numpy()]))


def training_batches(dataset: Dataset, shards: Shards, epoch: int
                     ) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one epoch: images float32 and labels, or characters (batch, length) twice."""
    generator = _generator(shards.seed, epoch, 2, shards.rank)
    offset = int(torch.randint(0, shards.length, (1,), generator=_generator(
        shards.seed, epoch, 3)))
    for numbers in shards.order(epoch):
        yield batch_of(dataset.train, numbers, generator, shards.length, offset)


def _sequences(text: np.ndarray, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Characters at starts .. starts + length, and those that follow each: int64, (n, length)."""
    places = starts.numpy()[:, None] + np.arange(length + 1)
    ids = torch.from_numpy(text[places].astype(np.int64))
    return ids[:, :-1], ids[:, 1:]


def test_batches(dataset: Dataset, shards: Shards, limit: int, size: int = 250
                 ) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's part of the test split (of its first `limit` samples, 0: all)."""
    split = dataset.test
    total = (len(split) - 1) // shards.length if split.y is None else len(split)
    numbers = torch.arange(min(limit, total) if limit else total)[shards.rank::shards.ranks]
    for part in numbers.split(size):
        if split.y is None:
            yield _sequences(split.x, part * shards.length, shards.length)
        else:
            yield (normalized(torch.from_numpy(split.x[part.numpy()])),
                   torch.from_numpy(split.y[part.numpy()]))


def training_samples(dataset: Dataset, wanted: int, length: int) -> int:
    """Samples of an epoch: `wanted`, or all there are."""
    split = dataset.train
    total = (len(split) - 1) // length - 1 if split.y is None else len(split)
    return min(wanted, total) if wanted else total


