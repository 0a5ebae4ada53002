"""Facts about folders of images: files, batches, margins."""

import pytest
import torch

from ammlib import margins
from ammlib.data import folders
from ammlib.data.datasets import load_data
from ammlib.data.folders import FolderBatches, ImageFiles, at_once, image_folder, in_parts, make_batches
from ammlib.data.registry import DATASETS
from ammlib.data.sources import DataError
from ammlib.models import make_model
from ammlib.training.evaluate import shared_margins


def test_image_files_are_like_the_tensor_that_they_would_make(tiny_images):
    data, theirs = load_data("tiny"), image_folder(tiny_images / "tiny", train=False)
    expected = torch.stack([image for image, _ in theirs])
    assert repr(data) == "Dataset(tiny: 6 train, 3 test, 3x224x224, 3 classes)" and data.family == "imagenet"
    assert data.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(data.test[0], expected)
    assert [len(part) for part in in_parts(data.x_test, 2)] == [2, 1]
    assert torch.equal(at_once(data.x_test[torch.tensor([2, 0])]), expected[[2, 0]]) and len(data.x_test[:2]) == 2


def test_batches_depend_on_seed_and_epoch_and_start_anywhere(tiny_images, monkeypatch):
    data, state = load_data("tiny"), torch.random.get_rng_state()
    batches = make_batches(data.x_train, data.y_train, 4, seed=1, crop=None, flip=False)
    epoch = list(batches.epoch(3))
    assert isinstance(batches, FolderBatches) and [len(x) for x, _ in epoch] == [4, 2] and len(batches) == 2
    assert sorted(torch.cat([y for _, y in epoch]).tolist()) == [0, 0, 1, 1, 2, 2]
    monkeypatch.setattr(folders, "WORKERS", 2)  # whatever decodes them
    for (x, y), (x_again, y_again) in zip(epoch[1:], batches.epoch(3, start=1), strict=True):
        assert torch.equal(x, x_again) and torch.equal(y, y_again)
    assert not torch.equal(next(batches.epoch(4))[0], epoch[0][0])
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(ValueError, match="start must be in 0 ... 2"):
        next(batches.epoch(0, start=3))
    with pytest.raises(ValueError, match="crop='pad4' is for images in memory"):
        make_batches(data.x_train, data.y_train, 4, seed=1, crop="pad4", flip=False)


def test_imagenet_is_where_the_variable_says_or_in_the_data_folder(tiny_images, monkeypatch):
    with pytest.raises(DataError, match=rf"no folder {tiny_images}/imagenet/train; .*val/<class>"):
        load_data("imagenet")
    monkeypatch.setenv("AMMLIB_IMAGENET", str(tiny_images / "tiny"))
    assert len(load_data("imagenet").x_train) == 6


def test_folders_must_have_the_same_classes_with_images(tiny_images):
    (tiny_images / "tiny" / "val" / "n03").rename(tiny_images / "tiny" / "val" / "n04")
    with pytest.raises(DataError, match="same classes; only in one of them: n03, n04"):
        load_data("tiny")
    (tiny_images / "tiny" / "val" / "n04" / "0.JPEG").unlink()
    with pytest.raises(DataError, match="is not like train/<class>"):
        load_data("tiny")


def test_files_that_cannot_be_decoded_say_which(tiny_images):
    path = tiny_images / "tiny" / "val" / "n01" / "0.JPEG"
    path.write_bytes(b"not a picture")
    with pytest.raises(Exception, match="0.JPEG"):
        at_once(ImageFiles([str(path)]))


def test_margins_in_std_units_of_one_deviation_are_the_norms_divided_by_it(tiny_images, tiny_weights):
    model = make_model("imagenet", "resnet18", 3)
    model.load_state_dict(tiny_weights)
    x = load_data("tiny").x_test
    pixel, std = (shared_margins(model, x, progress=False, steps=1, std=std) for std in (None, (0.25, 0.25, 0.25)))
    torch.testing.assert_close(std.norm, 4 * pixel.norm)
    in_memory = margins(model, at_once(x), progress=False, steps=1, batch_size=1)
    torch.testing.assert_close(in_memory.norm, pixel.norm, rtol=1e-3, atol=0)
    assert DATASETS["imagenet"].std == (0.229, 0.224, 0.225) and DATASETS["cifar10"].std is None
