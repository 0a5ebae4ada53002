import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from ammlib.cli import main
from ammlib.data import folders as image_folders
from ammlib.data import sources
from ammlib.data.registry import DATASETS
from ammlib.experiments.cost.screening import Recording as RecordingAMM  # noqa: F401  for the tests
from ammlib.models import make_model
from ammlib.training import execute

torch.set_num_threads(1)


class Affine(nn.Module):
    """f(x) = Wx + b on inputs of any shape."""

    def __init__(self, shape, classes, dtype=torch.float64, flat=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, torch.Size(shape).numel(), dtype=dtype))
        self.bias = nn.Parameter(torch.randn(classes, dtype=dtype))
        self.flat = flat

    def forward(self, x):
        f = x.flatten(1) @ self.weight.T + self.bias
        return f.squeeze(1) if self.flat else f

    def distance(self, x, other):
        """From x to the boundary between its prediction and the classes `other` (B, K)."""
        f, prediction = self(x), self(x).argmax(1, keepdim=True)
        gap = f.gather(1, prediction) - f.gather(1, other)
        return gap / (self.weight[prediction] - self.weight[other]).norm(dim=2)


def rivals(f):
    """All classes but the prediction, the likeliest first."""
    return f.argsort(1, descending=True)[:, 1:]


def make_net(factory, gain=1.0, seed=0, dtype=torch.float64) -> nn.Module:
    """A net with seeded weights; gain > 1 makes it less linear, so that the attack needs more iterations."""
    torch.manual_seed(seed)
    net = factory().to(dtype)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(gain)
    return net


def half_right(net, x, seed=0):
    """Labels that make every second sample correctly classified, the others random."""
    prediction = net(x).argmax(1)
    random = torch.randint(10, prediction.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(len(x)) % 2 == 0, prediction, random)


def assert_same(ours, theirs, tolerance=1e-9):
    """Equal tensors (or lists of them), up to a tolerance relative to the largest entry of each."""
    pairs = [(ours, theirs)] if torch.is_tensor(ours) else zip(ours, theirs, strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.abs().max().item())


def gradients(value, net):
    """With respect to all parameters, as a list; the graph stays."""
    return torch.autograd.grad(value, list(net.parameters()), retain_graph=True, materialize_grads=True)


@pytest.fixture(scope="session")
def digits():
    """1,797 real images (1, 8, 8) in [0, 1], float64, shuffled; and their labels."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(data.images / 16).unsqueeze(1)[order], torch.from_numpy(data.target).long()[order]


def make_arrays(n_train=20, n_test=10, shape=(28, 28, 1), num_classes=5):
    """What <name>.npz holds."""
    rng = np.random.default_rng(0)
    sizes = {"train": n_train, "test": n_test}
    x = {f"x_{split}": rng.integers(0, 256, (n, *shape), dtype=np.uint8) for split, n in sizes.items()}
    return x | {f"y_{split}": (np.arange(n) % num_classes).astype(np.uint8) for split, n in sizes.items()}


def changed(monkeypatch, name, **changes):
    """For this test, the row of a data set has other values."""
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], **changes))


def sums(arrays):
    """Their SHA-256, as the row of a data set has it."""
    return tuple(hashlib.sha256(arrays[key].tobytes()).hexdigest() for key in sources.KEYS)


def folders(root):
    return {f"AMMLIB_{name.upper()}": str(Path(root) / name) for name in ("results", "checkpoints")}


@pytest.fixture
def own_folders(tmp_path, monkeypatch):
    """Results and checkpoints of the test go to its own folders."""
    for name, value in folders(tmp_path).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A results folder without runs; the published numbers are those of the checkout."""
    monkeypatch.setenv("AMMLIB_RESULTS", str(tmp_path))


@pytest.fixture
def refused(capsys, monkeypatch):
    """A command that ends in one line, before any training."""

    def check(command, *reasons):
        monkeypatch.setattr(execute, "train", lambda *_, **__: pytest.fail("training began"))
        assert main(command if isinstance(command, list) else command.split()) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        assert all(str(reason) in error for reason in reasons), error

    return check


@pytest.fixture
def tiny_images(tmp_path, monkeypatch, own_folders):
    """A data folder with the data set `tiny`: two training images and one test image of each of three classes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 2), ("val", 1)):
        for name in ("n01", "n02", "n03"):
            folder = tmp_path / "data" / "tiny" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
                Image.fromarray(noise).resize((320, 240), Image.Resampling.BILINEAR).save(folder / f"{i}.JPEG")
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("AMMLIB_IMAGENET", raising=False)
    monkeypatch.setattr(image_folders, "WORKERS", 0)
    return tmp_path / "data"


@pytest.fixture
def tiny_weights(tiny_images, monkeypatch):
    """Weights of a ResNet-18 with three classes, as torchvision would store them, in the data folder; small images."""
    monkeypatch.setattr(image_folders, "SIZE", 64)
    torch.manual_seed(0)
    model = make_model("imagenet", "resnet18", 3)
    torch.save(model[1].state_dict(), tiny_images / "imagenet_resnet18.pth")
    return model.state_dict()
