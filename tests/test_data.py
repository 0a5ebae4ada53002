"""Facts about the data sets: what is loaded is what its name says, or an error says why."""

import hashlib

import numpy as np
import pytest
import torch
from conftest import changed, make_arrays, sums
from PIL import Image

import ammlib.data.files as files
from ammlib.data.datasets import data_root, load_data
from ammlib.data.folders import image_folder
from ammlib.data.sources import DataError

# ---- data sets


def test_digits():
    data = load_data("digits")
    assert data.x_train.shape == (1437, 1, 8, 8) and data.x_test.shape == (360, 1, 8, 8)
    assert (data.x_train.dtype, data.y_train.dtype) == (torch.uint8, torch.int64)
    assert data.x_train.min() == 0 and data.x_train.max() == 255
    assert data.num_classes == 10 and data.family == "digits" and data.classes == tuple("0123456789")
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
    changed(monkeypatch, "mnist", sha256=sums(arrays))
    assert load_data("mnist", tmp_path).family == "mnist"
    np.savez(tmp_path / "mnist.npz", **arrays | {"x_train": arrays["x_train"][..., 0], "y_test": arrays["y_test"] + 0})
    assert load_data("mnist", tmp_path).x_train.shape == (20, 1, 28, 28)  # other layouts of the same bytes are right


def test_cifar100_may_come_in_any_order_and_is_read_in_one(tmp_path, monkeypatch):
    arrays = make_arrays(shape=(32, 32, 3))
    np.savez(tmp_path / "cifar100.npz", **arrays)
    with pytest.raises(DataError, match=r"train images of cifar100 have the sum .* expected 7afde5.*another name"):
        load_data("cifar100", tmp_path)

    def by_hand(x, y):
        total = sum(
            int(hashlib.sha256(bytes([label]) + image.tobytes()).hexdigest(), 16)
            for image, label in zip(x, y, strict=True)
        )
        return f"{total % 2**256:064x}"

    splits = [(arrays[f"x_{split}"], arrays[f"y_{split}"]) for split in ("train", "test")]
    changed(monkeypatch, "cifar100", any_order=tuple(by_hand(*split) for split in splits))
    first = load_data("cifar100", tmp_path)
    order = np.random.default_rng(1).permutation(20)
    shuffled = arrays | {key: arrays[key][order] for key in ("x_train", "y_train")}
    np.savez(tmp_path / "cifar100.npz", **shuffled | {"y_train": shuffled["y_train"].astype(np.int64)})
    second = load_data("cifar100", tmp_path)
    assert torch.equal(first.x_train, second.x_train) and torch.equal(first.y_train, second.y_train)
    pairs = {(x.tobytes(), y) for x, y in zip(arrays["x_train"], arrays["y_train"].tolist(), strict=True)}
    found = first.x_train.permute(0, 2, 3, 1).contiguous().numpy()
    assert {(x.tobytes(), y) for x, y in zip(found, first.y_train.tolist(), strict=True)} == pairs
    np.savez(tmp_path / "cifar100.npz", **arrays | {"y_train": arrays["y_train"][::-1]})
    with pytest.raises(DataError, match="train images of cifar100"):  # the right images with the wrong labels
        load_data("cifar100", tmp_path)


def test_files_are_read_once_as_long_as_they_stay(tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    np.savez(path, **make_arrays())
    first = load_data("mine", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ammlib.data.datasets.read_stored", lambda *_: pytest.fail("read again"))
        assert load_data("mine", tmp_path) is first
    np.savez(path, **make_arrays(n_train=30))
    assert len(load_data("mine", tmp_path).y_train) == 30 and len(first.y_train) == 20


def test_root_is_the_environments_or_the_checkouts(tmp_path, monkeypatch):
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("AMMLIB_DATA")
    package = tmp_path / "checkout" / "ammlib" / "data"
    package.mkdir(parents=True)
    monkeypatch.setattr(files, "__file__", str(package / "files.py"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert data_root() == tmp_path / "elsewhere" / "data"
    (tmp_path / "checkout" / "pyproject.toml").touch()
    assert data_root() == tmp_path / "checkout" / "data"


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
