"""Data sets by name, as uint8 tensors (the toy points: float32); ImageNet and its like as folders of files."""

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ammlib.data.files import home, tensors_digest
from ammlib.data.folders import LAYOUT as FOLDER_LAYOUT
from ammlib.data.folders import ImageFiles, Images, at_once, image_folder
from ammlib.data.registry import DATASETS
from ammlib.data.sources import KEYS, Arrays, DataError
from ammlib.data.stored import files_of, read_stored, with_channels

FAMILIES: dict[tuple[int, ...], str] = {
    (1, 28, 28): "mnist",
    (3, 32, 32): "cifar",
    (1, 8, 8): "digits",
    (2, 1, 1): "toy",
    (3, 224, 224): "imagenet",
}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images uint8 (N, C, H, W), or points float32 (N, 2, 1, 1), and labels int64 (N,) for training and for test."""

    name: str
    x_train: Images
    y_train: Tensor
    x_test: Images
    y_test: Tensor
    num_classes: int

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        """Training images as models take them, float32 in [0, 1], and labels."""
        return at_once(self.x_train), self.y_train

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Test images as models take them, float32 in [0, 1], and labels."""
        return at_once(self.x_test), self.y_test

    @property
    def family(self) -> str:
        """The family of models for these images: mnist, cifar, digits, or else the shape, such as 3x64x64."""
        shape = tuple(self.x_train.shape[1:])
        return FAMILIES.get(shape, "x".join(map(str, shape)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of images and labels; image files count by their names and sizes."""
        columns = {name: getattr(self, name) for name in KEYS}
        tensors = {name: column if isinstance(column, Tensor) else column.listing for name, column in columns.items()}
        return tensors_digest({f"{name} {tuple(columns[name].shape)}": tensors[name] for name in KEYS})

    @property
    def classes(self) -> tuple[str, ...]:
        """What the labels stand for: their names where these are known, otherwise the numbers."""
        names = DATASETS[self.name].class_names if self.name in DATASETS else ()
        return names or tuple(map(str, range(self.num_classes)))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x_train.shape[1:]))
        sizes = f"{len(self.x_train)} train, {len(self.x_test)} test"
        return f"Dataset({self.name}: {sizes}, {shape}, {self.num_classes} classes)"


def shape_of(family: str) -> tuple[int, ...]:
    """The images that a family of models takes."""
    return next(shape for shape, name in FAMILIES.items() if name == family)


def data_root() -> Path:
    """`$AMMLIB_DATA`, or `data/` in the checkout this package runs from, or `data/` where Python was started."""
    return Path(os.environ.get("AMMLIB_DATA") or home() / "data").expanduser()


def load_data(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set by its name, or the user's own `<root>/<name>.npz`; fetched on first use and checked.

    As long as its files stay as they are, a process reads and checks them once: do not change the tensors in place.
    """
    root = data_root() if root is None else Path(root)
    if name in ("", "..") or name != Path(name).name:
        raise ValueError(f"unknown data set {name!r}: it is a name, not a path; AMMLIB_DATA says where the data lie")
    if (folder := _folder(name, root)) is not None:
        return _image_files(name, folder)
    own = {path.stem for path in root.glob("*.npz")}
    if name not in DATASETS and name not in own:
        choices = ", ".join([*DATASETS, *sorted(own - set(DATASETS))])
        own_path = f"{root / str(name)}.npz, or as {FOLDER_LAYOUT} in {root / str(name)}"
        raise ValueError(f"unknown data set {name!r}; choices: {choices}; or put your own at {own_path}")
    make = DATASETS[name].make if name in DATASETS else None
    if make is not None:
        return _from_arrays(name, make())
    stamps = [(str(path.resolve()), path.stat().st_mtime_ns, path.stat().st_size) for path in files_of(name, root)]
    return _read_once(name, root, tuple(stamps))


@lru_cache(maxsize=4)
def _read_once(name: str, root: Path, stamps: tuple[tuple[str, int, int], ...]) -> Dataset:
    """A data set whose files are these, of these times and sizes."""
    return _from_arrays(name, read_stored(name, root))


def _from_arrays(name: str, arrays: Arrays) -> Dataset:
    images = (with_channels(arrays[key]) for key in ("x_train", "x_test"))
    x_train, x_test = (torch.from_numpy(x).permute(0, 3, 1, 2) for x in images)
    y_train, y_test = (torch.from_numpy(arrays[key].astype(np.int64)) for key in ("y_train", "y_test"))
    num_classes = int(arrays.get("num_classes", y_train.max() + 1))
    return Dataset(name, x_train.contiguous(), y_train, x_test.contiguous(), y_test, num_classes)


def _folder(name: str, root: Path) -> Path | None:
    """Where the image files of a data set are, if it has files: ImageNet's at `$AMMLIB_IMAGENET` or in the root."""
    path = root / str(name)
    if name == "imagenet":
        return Path(os.environ.get("AMMLIB_IMAGENET") or path).expanduser()
    return path if (path / "val").is_dir() and name not in DATASETS else None


def _image_files(name: str, folder: Path) -> Dataset:
    """A folder of image files; they are read while they are needed."""
    train, test = (image_folder(folder, train) for train in (True, False))
    if train.classes != test.classes:
        few = ", ".join(sorted(set(train.classes) ^ set(test.classes))[:5])
        raise DataError(f"train/ and val/ in {folder} must have the same classes; only in one of them: {few}")
    if len(train.classes) < 2:
        raise DataError(f"a classifier needs two classes, {folder} has {len(train.classes)}")
    x_train, x_test = (ImageFiles([path for path, _ in split.samples]) for split in (train, test))
    y_train, y_test = (torch.tensor(split.targets) for split in (train, test))
    return Dataset(name, x_train, y_train, x_test, y_test, len(train.classes))
