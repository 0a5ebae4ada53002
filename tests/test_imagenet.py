"""ImageNet's path on folders of a few generated images: files, batches, pretrained weights, the sample."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

from ammlib import margins, pretrained, sample
from ammlib.data import DataError, FolderBatches, ImageFiles, folders, image_folder, load_data, make_batches
from ammlib.evaluate import evaluate
from ammlib.models import caffe, make_model, margin_std
from ammlib.notebook import stored_runs
from ammlib.prepare import prepare_data
from ammlib.recipes import make_recipe, study
from ammlib.runs import execute, load_run, run_or_load, trained_model
from ammlib.sample_report import fine_tuning_table, sample_figure, sample_table
from ammlib.train import Training

CLASSES = ("n01", "n02", "n03")


@pytest.fixture
def root(tmp_path, monkeypatch, own_folders):
    """A data folder with the data set `tiny`: two training images and one test image of each of three classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 2), ("val", 1)):
        for name in CLASSES:
            folder = tmp_path / "data" / "tiny" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(noise).resize((320, 240), Image.Resampling.BILINEAR).save(folder / f"{i}.JPEG")
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("AMMLIB_IMAGENET", raising=False)
    monkeypatch.setattr(folders, "WORKERS", 0)
    return tmp_path / "data"


@pytest.fixture
def weights(root, monkeypatch):
    """Weights of a ResNet-18 with three classes, as torchvision would store them, in the data folder; small images."""
    monkeypatch.setattr(folders, "SIZE", 64)
    torch.manual_seed(0)
    model = make_model("imagenet", "resnet18", 3)
    torch.save(model[1].state_dict(), root / "imagenet_resnet18.pth")
    return model.state_dict()


# ---- folders


def test_image_files_are_like_the_tensor_that_they_would_make(root):
    data, theirs = load_data("tiny"), image_folder(root / "tiny", train=False)
    expected = torch.stack([image for image, _ in theirs])
    assert repr(data) == "Dataset(tiny: 6 train, 3 test, 3x224x224, 3 classes)" and data.family == "imagenet"
    assert data.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(data.test[0], expected)
    assert [len(part) for part in data.x_test.split(2)] == [2, 1]
    assert torch.equal(data.x_test[torch.tensor([2, 0])].float() / 255, expected[[2, 0]])
    assert len(data.x_test[:2]) == 2 and data.x_test.dtype == torch.uint8


def test_batches_depend_on_seed_and_epoch_and_start_anywhere(root, monkeypatch):
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


def test_imagenet_is_where_the_variable_says_or_in_the_data_folder(root, monkeypatch):
    with pytest.raises(DataError, match=rf"no folder {root}/imagenet/train; .*val/<class>"):
        load_data("imagenet")
    monkeypatch.setenv("AMMLIB_IMAGENET", str(root / "tiny"))
    assert len(load_data("imagenet").x_train) == 6


def test_folders_must_have_the_same_classes_with_images(root):
    (root / "tiny" / "val" / "n03").rename(root / "tiny" / "val" / "n04")
    with pytest.raises(DataError, match="same classes; only in one of them: n03, n04"):
        load_data("tiny")
    (root / "tiny" / "val" / "n04" / "0.JPEG").unlink()
    with pytest.raises(DataError, match="is not like train/<class>"):
        load_data("tiny")


# ---- margins


def test_margins_in_std_units_of_one_deviation_are_the_norms_divided_by_it(root, weights):
    model = make_model("imagenet", "resnet18", 3)
    model.load_state_dict(weights)
    x = load_data("tiny").x_test
    pixel, std = (margins(model, x, progress=False, steps=1, std=std) for std in (None, (0.25, 0.25, 0.25)))
    torch.testing.assert_close(std.norm, 4 * pixel.norm)
    in_memory = margins(model, x.float() / 255, progress=False, steps=1, batch_size=1)
    torch.testing.assert_close(in_memory.norm, pixel.norm, rtol=1e-3, atol=0)
    assert margin_std("imagenet") == (0.229, 0.224, 0.225) and margin_std("cifar10") is None


# ---- pretrained weights


@pytest.mark.parametrize("layout", ["torchvision", "ours"])
def test_weights_are_read_in_every_layout(root, weights, layout):
    if layout == "ours":
        (root / "imagenet_resnet18.pth").unlink()
        save_file(weights, root / "imagenet_resnet18.safetensors")
    found = pretrained.pretrained("resnet18", 3)
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)


def test_senet50_takes_the_names_of_timm(root):
    state = make_model("imagenet", "senet50", 3).state_dict()
    timm = {name[2:].replace(".bn3.0.", ".bn3.").replace(".bn3.1.", ".se.") for name in state if name[0] == "1"}
    assert {"layer1.0.se.fc1.weight", "layer1.0.se.fc2.bias", "layer1.0.bn3.weight"} <= timm
    assert {f"1.{pretrained.our_name(name, 'senet50')}" for name in timm} == {n for n in state if n[0] == "1"}


def test_weights_that_do_not_fit_say_so(root, weights):
    with pytest.raises(
        DataError, match=r"does not fit resnet18 with 1000 classes: 2 tensors, such as fc.weight, fc.bias"
    ):
        pretrained.pretrained("resnet18")
    (root / "imagenet_resnet18.pth").write_bytes(b"half a file")
    with pytest.raises(DataError, match="imagenet_resnet18.pth is damaged"):
        pretrained.pretrained("resnet18")
    with pytest.raises(ValueError, match="resnet18, resnet50, resnet50_caffe, senet50"):
        pretrained.pretrained("resnet19")


def test_missing_weights_list_what_was_tried_and_a_failed_download_leaves_nothing(root, monkeypatch):
    def broken(arch, root):
        with pretrained.passing_folder(arch, root) as folder:
            (folder / "part").write_bytes(b"half")
            raise OSError("connection lost")

    monkeypatch.setitem(pretrained.SOURCES, "resnet50", {"a download": broken})
    with pytest.raises(
        DataError, match=r"(?s)a download: OSError: connection lost.*imagenet_resnet50.safetensors or .pth"
    ):
        pretrained.pretrained("resnet50")
    with pytest.raises(DataError, match="timm's seresnet50 fits"):
        pretrained.pretrained("senet50")
    assert [path.name for path in root.iterdir()] == ["tiny"]


# ---- He et al.'s weights from Keras


def keras_weights(seed=0):
    """Random weights with the names and shapes of the Keras model."""
    random, weights = np.random.default_rng(seed), {}
    state = make_model("imagenet", "resnet50_caffe", 7).state_dict()
    for (conv, norm), (ours, _) in caffe.names().items():
        n, fan, *kernel = state[f"1.{ours}.weight"].shape
        scale = (2 / (fan * np.prod(kernel))) ** 0.5
        weights[f"{conv}/kernel"] = scale * random.standard_normal((*kernel, fan, n), dtype=np.float32)
        for name in (f"{conv}/bias", f"{norm}/beta", f"{norm}/moving_mean"):
            weights[name] = 0.1 * random.standard_normal(n, dtype=np.float32)
        for name in (f"{norm}/gamma", f"{norm}/moving_variance"):
            weights[name] = random.uniform(0.01, 0.5, n).astype(np.float32)
    weights["fc1000/kernel"] = 0.02 * random.standard_normal((2048, 7), dtype=np.float32)
    weights["fc1000/bias"] = random.standard_normal(7, dtype=np.float32)
    return weights


def keras_forward(weights, x):
    """The Keras graph step by step in float64: x is RGB in [0, 1], its images are BGR in 0 ... 255 less the mean."""
    w = {name: torch.from_numpy(value).double() for name, value in weights.items()}

    def layer(x, conv, norm, stride=1, padding=0):
        x = F.conv2d(x, w[f"{conv}/kernel"].permute(3, 2, 0, 1), w[f"{conv}/bias"], stride, padding)
        statistics = w[f"{norm}/moving_mean"], w[f"{norm}/moving_variance"]
        return F.batch_norm(x, *statistics, w[f"{norm}/gamma"], w[f"{norm}/beta"], eps=1e-3)

    x = 255 * x.flip(1) - torch.tensor([103.939, 116.779, 123.68], dtype=torch.float64).view(3, 1, 1)
    x = F.max_pool2d(F.pad(layer(x, "conv1", "bn_conv1", 2, 3).relu(), (1, 1, 1, 1)), 3, 2)
    for stage, letters in (("2", "abc"), ("3", "abcd"), ("4", "abcdef"), ("5", "abc")):
        for letter in letters:
            name, stride = f"{stage}{letter}_branch", 2 if letter == "a" and stage != "2" else 1
            y = layer(x, f"res{name}2a", f"bn{name}2a", stride).relu()
            y = layer(y, f"res{name}2b", f"bn{name}2b", 1, 1).relu()
            y = layer(y, f"res{name}2c", f"bn{name}2c")
            x = (y + (layer(x, f"res{name}1", f"bn{name}1", stride) if letter == "a" else x)).relu()
    return x.mean((2, 3)) @ w["fc1000/kernel"] + w["fc1000/bias"]


def test_converted_weights_compute_what_the_keras_model_does():
    weights = keras_weights()
    model = make_model("imagenet", "resnet50_caffe", 7).double().eval()
    missing = model.load_state_dict(caffe.convert(weights), strict=False)
    assert not missing.unexpected_keys and all("num_batches" in name for name in missing.missing_keys)
    x = torch.rand(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = model(x), keras_forward(weights, x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4 * theirs.std().item())


def test_the_package_is_opened_only_with_the_right_sum(tmp_path, monkeypatch):
    arrays = {"a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "a/bias": np.ones(1, np.float32)}
    data = b"".join(array.tobytes() for array in arrays.values())
    entries = [{"name": name, "shape": array.shape, "dtype": "float32"} for name, array in arrays.items()]
    manifest = {"weightsManifest": [{"paths": ["one.bin", "two.bin"], "weights": entries}]}
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        for name, content in (
            ("model.json", json.dumps(manifest).encode()),
            ("one.bin", data[:10]),
            ("two.bin", data[10:]),
        ):
            info = tarfile.TarInfo(f"package/ResNet50/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(DataError, match="SHA-256 .*, expected 96fd29"):
        pretrained.read_keras_tarball(tmp_path / "a.tgz")
    monkeypatch.setattr(pretrained, "KERAS_SHA256", pretrained.hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(caffe, "convert", lambda weights: weights)
    found = pretrained.read_keras_tarball(tmp_path / "a.tgz")
    assert found.keys() == arrays.keys() and all(np.array_equal(found[name], arrays[name]) for name in arrays)


# ---- runs


def tiny_recipe(method):
    changes = {"batch": 4, "steps": 1, "lr": 1e-3} if method == "amm" else {}
    return make_recipe("tiny", "resnet18", method, "short", "imagenet", margin_size=2, **changes)


def test_the_reference_is_evaluated_and_fine_tuning_starts_from_its_weights(root, weights):
    reference = run_or_load(tiny_recipe("reference"), 0, progress=False)
    model = make_model("imagenet", "resnet18", 3)
    model.load_state_dict(weights)
    data = load_data("tiny")
    assert reference.history == [] and reference.metrics["test_images"] == 3
    found = evaluate(model, data.x_test, data.y_test, progress=False, std=margin_std("imagenet"))
    assert reference.metrics["error"] == found["error"] and reference.metrics["margin_samples"] == 2
    tuned = execute(tiny_recipe("amm"), 0, progress=False)
    assert tuned.recipe.freeze_bn and len(tuned.history) == 1 and load_run(tiny_recipe("amm"), 0) is not None
    trained = trained_model(tiny_recipe("amm"), 0).state_dict()
    moved = (trained["1.conv1.weight"] - weights["1.conv1.weight"]).norm()
    assert 0 < moved < 0.1 * weights["1.conv1.weight"].norm()
    assert torch.equal(trained["1.bn1.running_mean"], weights["1.bn1.running_mean"])


def test_a_training_on_files_resumes_within_an_epoch(root, weights, tmp_path):
    recipe = tiny_recipe("amm")
    data = prepare_data(recipe)
    whole, first = (Training(recipe, 0, data, weights, tmp_path / name) for name in ("whole.pt", "first.pt"))
    for batch in whole.batches.epoch(0):
        whole.take_step(*batch)
    first.take_step(*next(first.batches.epoch(0)))
    first.save()
    resumed = Training(recipe, 0, data, weights, tmp_path / "first.pt")
    for batch in resumed.batches.epoch(0, start=resumed.step):
        resumed.take_step(*batch)
    ends = whole.model.state_dict(), resumed.model.state_dict()
    assert resumed.step == 2 and all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


# ---- the sample


def test_the_sample_goes_on_where_it_was_stopped(root, weights, monkeypatch):
    monkeypatch.setattr(sample, "FOLDER", "tiny")
    first = sample.measure("resnet18", 1)
    assert len(first.predictions) == 3 and len(first.rows) == 1
    both = sample.measure("resnet18", 2)
    assert (
        both.rows[:1] == first.rows
        and both.predictions == first.predictions
        and both.std[:1] == first.std
        and len(both.std) == 2
    )
    assert sample.load_sample("resnet18") == both
    ratio = torch.tensor(both.std) / torch.tensor(both.pixel)
    assert (ratio >= 1 / 0.229 - 0.01).all() and (ratio <= 1 / 0.224 + 0.01).all()


def test_fine_tuning_on_the_sample_is_stored_with_its_recipe(root, weights, monkeypatch):
    monkeypatch.setattr(sample, "FOLDER", "tiny")
    found = sample.fine_tune("resnet18", images=2, batch=1)
    assert len(found["steps"]) == len(found["before"]) == len(found["after"]) == 2
    assert all(np.isfinite(step["loss"]) for step in found["steps"])
    assert sample.stored("fine_tuning", "resnet18") == found and found["recipe"]["regulariser"]["num_rivals"] == 10
    assert sample.stored("fine_tuning", "resnet50") is None


def test_the_report_shows_ours_beside_the_paper_or_how_to_measure():
    net = {"arch": "resnet50_caffe", "weights": "", "versions": {}, "device": "cpu", "labels": [0, 1, 2, 3]}
    columns = {"rows": [2, 0], "pixel": [0.1, 0.3], "std": [0.44, 1.32], "steps": [2, 4], "success": [True, True]}
    found = sample.Sample(**net, predictions=[0, 1, 3, 3], **columns)
    lines = {" ".join(line.split()) for line in sample_table(found.arch, found).splitlines()}
    assert {"top-1 error (%) 4 25.0 23.85", "margin, mean (std units) 2 0.88 0.82"} <= lines
    assert {"margin, mean of the correct (std units) 1 1.32", "margin, mean (pixel units) 2 0.200"} <= lines
    step = {"loss": 1.5, "regulariser": 0.25, "kept": 2.0, "margin": None}
    tuning = {"steps": [step], "before": [0.5, 1.0], "after": [0.75, 0.9]}
    text = fine_tuning_table(found.arch, tuning)
    assert "mean margin 0.750 → 0.825 (std units), larger for 1 of 2 images" in text
    for arguments in ((found, tuning), (None, None)):
        assert len(sample_figure(found.arch, *arguments).axes) == 2
    assert sample_table("senet50", None) == "not measured; python -m ammlib.sample margins --arch senet50"
    assert "fine_tuning --arch senet50" in fine_tuning_table("senet50", None)


def test_without_imagenet_the_error_comes_before_any_training(root):
    with pytest.raises(DataError, match=f"no folder {root}/imagenet/train"):
        stored_runs(study("table7", "short")[:2], train=True)


def test_files_that_cannot_be_decoded_say_which(root):
    path = root / "tiny" / "val" / "n01" / "0.JPEG"
    path.write_bytes(b"not a picture")
    with pytest.raises(Exception, match="0.JPEG"):
        ImageFiles([str(path)]).float()
