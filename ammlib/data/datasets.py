"""Data sets by name, as uint8 tensors (the toy points: float32); ImageNet and its like as folders of files."""

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ammlib.data.batches import model_input, validation_split
from ammlib.data.files import home
from ammlib.data.folders import LAYOUT as FOLDER_LAYOUT
from ammlib.data.folders import ImageFiles, image_folder
from ammlib.data.sources import KEYS, LAYOUT, Arrays, DataError, fetch, torchvision_split, verify

FAMILIES = {
    (1, 28, 28): "mnist",
    (3, 32, 32): "cifar",
    (1, 8, 8): "digits",
    (2, 1, 1): "toy",
    (3, 224, 224): "imagenet",
}
CLASSES = {"cifar10": ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images uint8 (N, C, H, W), or points float32 (N, 2, 1, 1), and labels int64 (N,) for training and for test."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    num_classes: int

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        """Training images as models take them, float32 in [0, 1], and labels."""
        return model_input(self.x_train), self.y_train

    @property
    def test(self) -> tuple[Tensor, Tensor]:
        """Test images as models take them, float32 in [0, 1], and labels."""
        return model_input(self.x_test), self.y_test

    @property
    def family(self) -> str:
        """The family of models for these images: mnist, cifar, digits, or else the shape, such as 3x64x64."""
        shape = tuple(self.x_train.shape[1:])
        return FAMILIES.get(shape, "x".join(map(str, shape)))

    @property
    def classes(self) -> tuple[str, ...]:
        """What the labels stand for: their names where these are known, otherwise the numbers."""
        return CLASSES.get(self.name) or tuple(map(str, range(self.num_classes)))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x_train.shape[1:]))
        sizes = f"{len(self.x_train)} train, {len(self.x_test)} test"
        return f"Dataset({self.name}: {sizes}, {shape}, {self.num_classes} classes)"


def data_root() -> Path:
    """`$AMMLIB_DATA`, or `data/` in the checkout this package runs from, or `data/` where Python was started."""
    return Path(os.environ.get("AMMLIB_DATA") or home() / "data").expanduser()


def load_data(name: str, root: str | os.PathLike | None = None) -> Dataset:
    """A data set by its name, or the user's own `<root>/<name>.npz`; fetched on first use, checked on every one."""
    root = data_root() if root is None else Path(root)
    if (folder := _folder(name, root)) is not None:
        return _files(name, folder)
    own = {path.stem for path in root.glob("*.npz")}
    if name not in DATASETS and name not in own:
        choices = ", ".join([*DATASETS, "imagenet", *sorted(own - set(DATASETS))])
        own_path = f"{root / str(name)}.npz, or as {FOLDER_LAYOUT} in {root / str(name)}"
        raise ValueError(f"unknown data set {name!r}; choices: {choices}; or put your own at {own_path}")
    arrays = DATASETS.get(name, _stored)(name, root)
    x_train, x_test = (torch.from_numpy(_channels(arrays[key])).permute(0, 3, 1, 2) for key in ("x_train", "x_test"))
    y_train, y_test = (torch.from_numpy(arrays[key].astype(np.int64)) for key in ("y_train", "y_test"))
    return Dataset(name, x_train.contiguous(), y_train, x_test.contiguous(), y_test, int(y_train.max()) + 1)


def _folder(name: str, root: Path) -> Path | None:
    """Where the image files of a data set are, if it has files: ImageNet's at `$AMMLIB_IMAGENET` or in the root."""
    path = root / str(name)
    if name == "imagenet":
        return Path(os.environ.get("AMMLIB_IMAGENET") or path).expanduser()
    return path if (path / "val").is_dir() and name not in DATASETS else None


def _files(name: str, folder: Path) -> Dataset:
    """A folder of image files; they are read while they are needed."""
    train, test = (image_folder(folder, train) for train in (True, False))
    if train.classes != test.classes:
        few = ", ".join(sorted(set(train.classes) ^ set(test.classes))[:5])
        raise DataError(f"train/ and val/ in {folder} must have the same classes; only in one of them: {few}")
    x_train, x_test = (ImageFiles([path for path, _ in split.samples]) for split in (train, test))
    y_train, y_test = (torch.tensor(split.targets) for split in (train, test))
    return Dataset(name, x_train, y_train, x_test, y_test, len(train.classes))


def _channels(x: np.ndarray) -> np.ndarray:
    return x[..., None] if x.ndim == 3 else x


def _stored(name: str, root: Path) -> Arrays:
    """The arrays of `<root>/<name>.npz`, checked."""
    path = fetch(name, root)
    arrays = _read(path)
    try:
        check_layout(arrays)
        verify(name, arrays)
    except DataError as error:
        raise DataError(f"{path}: {error}. Replace the file; if it is other data, give it another name.") from None
    return arrays


def _read(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:  # np.load alone takes other formats too
            return {key: file[key] for key in KEYS if key in file.files}
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
    train, test = (_channels(arrays[key]).shape[1:] for key in ("x_train", "x_test"))
    if train != test:
        raise DataError(f"images of x_train are {train}, of x_test {test}; they must be alike")
    y_train, y_test = arrays["y_train"], arrays["y_test"]
    if y_train.min() != 0:
        raise DataError(f"labels must start at 0, those of y_train start at {y_train.min()}")
    if y_test.min() < 0 or y_test.max() > y_train.max():
        span = f"{y_test.min()} ... {y_test.max()}"
        raise DataError(f"labels of y_test are {span}, out of the range of y_train, 0 ... {y_train.max()}")


def _check_split(split: str, x: np.ndarray, y: np.ndarray) -> None:
    if x.dtype != np.uint8:
        raise DataError(f"x_{split} must be uint8 (0 ... 255), is {_describe(x)}")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"y_{split} must be integers, is {_describe(y)}")
    if x.ndim not in (3, 4) or _channels(x).shape[-1] not in (1, 3) or 0 in x.shape:
        raise DataError(f"x_{split} must be N x H x W x C with C = 1 or 3, or N x H x W, is {x.shape}")
    if y.shape != x.shape[:1]:
        raise DataError(f"y_{split} must have one label for each of {len(x)} images, is {y.shape}")


def _describe(array: np.ndarray) -> str:
    bad = np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all()
    return f"{array.dtype}{' with NaN or infinite values' if bad else ''}"


def _svhn(name: str, root: Path) -> Arrays:
    """SVHN, with the `extra` images, which the paper trains on too, if their file lies in the root."""
    arrays = _stored(name, root)
    if (root / "extra_32x32.mat").exists():
        extra = torchvision_split(name, root, "extra")
        for key, more in zip(("x_train", "y_train"), extra, strict=True):
            arrays[key] = np.concatenate([arrays[key], more])
    return arrays


def _digits(name: str, root: Path) -> Arrays:
    """scikit-learn's 1,797 real digits of 8 x 8: 1,437 for training and 360 for test; needs no files."""
    from sklearn.datasets import load_digits  # here because its import is slow

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    train, test = (index.numpy() for index in validation_split(len(x), seed=0, n_val=360))
    return dict(zip(KEYS, (x[train], labels[train], x[test], labels[test]), strict=True))


def _digits32(name: str, root: Path) -> Arrays:
    """The digits as 32 x 32 x 3 (bilinear), for small runs of what is made for CIFAR."""
    arrays = _digits(name, root)
    for key in ("x_train", "x_test"):
        x = torch.from_numpy(arrays[key]).permute(0, 3, 1, 2).float()
        x = F.interpolate(x, size=(32, 32), mode="bilinear").round().to(torch.uint8)
        arrays[key] = x.permute(0, 2, 3, 1).expand(-1, -1, -1, 3).numpy()
    return arrays


def _toy(name: str, root: Path) -> Arrays:
    """Section 3.3.3: points, uniform in two thin rectangles, 200 a class for training and as many for test."""
    random = np.random.default_rng(0)
    low, high = np.array([[-1.01, -4.0], [0.99, -2.0]]), np.array([[-0.99, 2.0], [1.01, 4.0]])
    labels = np.repeat([0, 1], 200)
    train, test = (random.uniform(low[labels], high[labels]).astype(np.float32)[:, None, None] for _ in range(2))
    return dict(zip(KEYS, (train, labels, test, labels), strict=True))


DATASETS: dict[str, Callable[[str, Path], Arrays]] = {
    **dict.fromkeys(("mnist", "cifar10", "cifar100"), _stored),
    "svhn": _svhn,
    "digits": _digits,
    "digits32": _digits32,
    "toy": _toy,
}
