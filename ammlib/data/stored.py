"""Data sets as `<root>/<name>.npz`: got on first use, checked whenever they are read."""

import hashlib
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from ammlib.data.files import remove_leftovers, write_atomically
from ammlib.data.registry import DATASETS, Source
from ammlib.data.sources import KEYS, LAYOUT, Arrays, DataError, first_that_works, torchvision_split

MOST_CLASSES = 100_000  # a net's last layer has a row for each
ADVICE = f"Put the data at {{path}}, with the arrays {LAYOUT}; or set AMMLIB_DATA to the folder that holds it."


def fetch(name: str, root: Path) -> Path:
    """The path of `<root>/<name>.npz`, got from the first source that works if it is not there yet."""
    path = Path(root) / f"{name}.npz"
    if path.exists():
        return path
    fetched = [known for known, entry in DATASETS.items() if entry.sources]
    if name not in fetched:
        raise ValueError(f"no source of {name!r} is known; choices: {', '.join(fetched)}, or put your own at {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        readers = DATASETS[name].sources.items()
        sources = {source: partial(_verified, read, name, path.parent) for source, read in readers}
        arrays = first_that_works(name, path, sources, ADVICE.format(path=path))
        write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
    except OSError as error:
        raise DataError(f"cannot write {path}: {error}") from error
    return path


def _verified(read: Source, name: str, root: Path) -> Arrays:
    arrays = read(name, root)
    verify(name, arrays)
    return arrays


def verify(name: str, arrays: Arrays) -> None:
    """Raise unless the arrays of a data set with known SHA-256 sums have them."""
    if name not in DATASETS:
        return
    for key, expected in zip(KEYS, DATASETS[name].sha256, strict=False):  # others have none
        found = hashlib.sha256(arrays[key].astype(np.uint8).tobytes()).hexdigest()
        if found != expected:
            raise DataError(f"{key} of {name} has SHA-256 {found}, expected {expected}")
    for split, expected in zip(("train", "test"), DATASETS[name].any_order, strict=False):
        found = sum_in_any_order(image_digests(arrays[f"x_{split}"], arrays[f"y_{split}"]))
        if found != expected:
            raise DataError(f"the {split} images of {name} have the sum {found} of SHA-256, expected {expected}")


def image_digests(x: np.ndarray, y: np.ndarray) -> list[bytes]:
    """SHA-256 of each image's label, one byte, and pixels."""
    labels = y.astype(np.uint8)
    return [hashlib.sha256(label.tobytes() + image.tobytes()).digest() for image, label in zip(x, labels, strict=True)]


def sum_in_any_order(digests: list[bytes]) -> str:
    """Their sum modulo 2^256: the same for all orders of the same images."""
    return f"{sum(int.from_bytes(digest) for digest in digests) % 2**256:064x}"


def in_one_order(arrays: Arrays) -> Arrays:
    """The images by their digests: whatever order a copy has, a subset or half of them by a seed is the same."""
    for split in ("train", "test"):
        digests = image_digests(arrays[f"x_{split}"], arrays[f"y_{split}"])
        order = sorted(range(len(digests)), key=digests.__getitem__)
        arrays = arrays | {key: arrays[key][order] for key in (f"x_{split}", f"y_{split}")}
    return arrays


def files_of(name: str, root: Path) -> list[Path]:
    """What a data set is read from: its file and, if it lies there, that of its extra training images."""
    entry, path = DATASETS.get(name), fetch(name, root)
    extra = [root / entry.extra] if entry and entry.extra and (root / entry.extra).exists() else []
    return [path, *extra]


def read_stored(name: str, root: Path) -> Arrays:
    """The arrays of a data set, checked; SVHN's with the `extra` images, which the paper trains on too; CIFAR-100's,
    of which copies in two orders exist, in an order of our own."""
    path, *extra = files_of(name, root)
    arrays = _read(path)
    try:
        check_layout(arrays)
        verify(name, arrays)
    except DataError as error:
        raise DataError(f"{path}: {error}. Replace the file; if it is other data, give it another name.") from None
    if name in DATASETS and DATASETS[name].any_order:
        arrays = in_one_order(arrays)
    if extra:
        more = torchvision_split(name, root, "extra")
        for key, added in zip(("x_train", "y_train"), more, strict=True):
            arrays[key] = np.concatenate([arrays[key], added])
    return arrays


def _read(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:  # np.load alone takes other formats too
            return {key: file[key] for key in (*KEYS, "num_classes") if key in file.files}
    except Exception as error:  # damaged bytes fail in a dozen ways
        raise DataError(
            f"{path} is damaged or not an .npz file ({error}): replace it, or delete it to fetch it anew"
        ) from error


def check_layout(arrays: Arrays) -> None:
    """Raise unless the four arrays are there with the types, shapes and labels of a data set."""
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise DataError(f"missing {', '.join(missing)}; it needs the arrays {LAYOUT}")
    for split in ("train", "test"):
        _check_split(split, arrays[f"x_{split}"], arrays[f"y_{split}"])
    train, test = (with_channels(arrays[key]).shape[1:] for key in ("x_train", "x_test"))
    if train != test:
        raise DataError(f"images of x_train are {train}, of x_test {test}; they must be alike")
    _check_labels(arrays["y_train"], arrays["y_test"], arrays.get("num_classes"))


def _check_labels(y_train: np.ndarray, y_test: np.ndarray, given: np.ndarray | None) -> None:
    """Labels are 0, 1, ... and below the number of classes, which is that of all labels unless it is given."""
    if y_train.min() != 0:
        raise DataError(f"labels must start at 0, those of y_train start at {y_train.min()}")
    if given is not None and (given.ndim or not np.issubdtype(given.dtype, np.integer)):
        raise DataError(f"num_classes must be one integer, is {_describe(given)} {given.shape}")
    classes = len(np.unique(y_train)) if given is None else int(given)
    if not 2 <= classes <= MOST_CLASSES:
        raise DataError(f"a classifier has 2 ... {MOST_CLASSES:,} classes, here are {classes}")
    if y_train.max() >= classes:
        advice = f"number them 0 ... {classes - 1}, or say how many there are by an array num_classes in the file"
        raise DataError(f"labels of y_train are of {classes} classes, but reach {y_train.max()}; {advice}")
    if y_test.min() < 0 or y_test.max() >= classes:
        span = f"{y_test.min()} ... {y_test.max()}"
        raise DataError(f"labels of y_test are {span}, out of the range of the classes, 0 ... {classes - 1}")


def _check_split(split: str, x: np.ndarray, y: np.ndarray) -> None:
    if x.dtype != np.uint8:
        raise DataError(f"x_{split} must be uint8 (0 ... 255), is {_describe(x)}")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"y_{split} must be integers, is {_describe(y)}")
    if x.ndim not in (3, 4) or with_channels(x).shape[-1] not in (1, 3) or 0 in x.shape:
        raise DataError(f"x_{split} must be N x H x W x C with C = 1 or 3, or N x H x W, is {x.shape}")
    if y.shape != x.shape[:1]:
        raise DataError(f"y_{split} must have one label for each of {len(x)} images, is {y.shape}")


def _describe(array: np.ndarray) -> str:
    bad = np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all()
    return f"{array.dtype}{' with NaN or infinite values' if bad else ''}"


def with_channels(x: np.ndarray) -> np.ndarray:
    """Images N x H x W as N x H x W x 1, others as they are."""
    return x[..., None] if x.ndim == 3 else x
