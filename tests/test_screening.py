"""Facts about the screened MIN: over a training run it keeps what the exact one keeps, and pulls the same way."""

from statistics import mean

import pytest
import torch
import torch.nn.functional as F
from conftest import RecordingAMM, make_net
from torch import nn

from ammlib.experiments.cost.screening import agreement, cosine


def mlp(*widths, init="kaiming"):
    """A ReLU net with the paper's initialisation, or with PyTorch's."""
    linear = [nn.Linear(i, o) for i, o in zip(widths, widths[1:], strict=False)]
    for layer in linear if init == "kaiming" else ():
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), *(module for layer in linear for module in (layer, nn.ReLU())))[:-1]


def batches(n, size, steps):
    """Rows of each batch: epochs without repetition, the last incomplete batch left out."""
    generator = torch.Generator().manual_seed(0)
    epochs = [torch.randperm(n, generator=generator).split(size)[: n // size] for _ in range(steps * size // n + 2)]
    return [rows for epoch in epochs for rows in epoch][:steps]


@pytest.mark.parametrize(
    "widths, size, steps, lr, init, momentum",
    [
        ((64, 200, 200, 10), 8, 300, 0.02, "kaiming", 0.0),
        ((64, 200, 200, 10), 8, 300, 0.02, "kaiming", 0.9),
        ((64, 200, 200, 10), 8, 300, 0.02, "default", 0.0),  # learns slowly: most of a batch is misclassified for long
        ((64, 200, 200, 10), 8, 300, 0.02, "default", 0.9),
        ((784, 800, 800, 10), 28, 40, 0.005, "kaiming", 0.9),
    ],
    ids=["digits", "digits, momentum", "digits, PyTorch's initialisation", "digits, both", "MNIST-sized"],
)
def test_screening_keeps_the_exact_selections_and_gradient(widths, size, steps, lr, init, momentum, digits):
    x, y = F.interpolate(digits[0].float(), size, mode="bilinear"), digits[1]
    net = make_net(lambda: mlp(*widths, init=init), dtype=torch.float32)
    exact, screened = RecordingAMM(screen=None), RecordingAMM()
    optimiser = torch.optim.SGD(net.parameters(), lr, momentum)
    notes = []
    for rows in batches(len(x), 100, steps):
        terms = exact(net, x[rows], y[rows]), screened(net, x[rows], y[rows])
        notes.append(agreement(net, exact, screened, terms))
        optimiser.zero_grad()
        (F.cross_entropy(net(x[rows]), y[rows]) + terms[0]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimiser.step()
    assert (net(x).argmax(1) == y).float().mean() > 0.7  # it has been a training run
    selected, found, added = (sum(note[name] for note in notes) for name in ("exact", "found", "added"))
    assert found >= 0.995 * selected and added <= 0.005 * selected
    assert mean(note["cosine"] for note in notes if note["cosine"] is not None) >= 0.999


def agreements(net, x, y):
    exact, screened = RecordingAMM(screen=None), RecordingAMM()
    return agreement(net, exact, screened, (exact(net, x, y), screened(net, x, y)))


def keeps_its_promise(notes):
    selected, found, added = (sum(note[name] for note in notes) for name in ("exact", "found", "added"))
    cosines = [note["cosine"] for note in notes if note["cosine"] is not None]
    return found >= 0.995 * selected and added <= 0.005 * selected and mean(cosines) >= 0.999


@pytest.mark.parametrize("batch", [100, 400])
@pytest.mark.parametrize("seed", range(5))
def test_where_weights_differ_in_length_by_class_screening_looks_farther(seed, batch):
    net = make_net(lambda: nn.Linear(20, 4), seed=seed, dtype=torch.float32)
    with torch.no_grad():
        net.weight.copy_(F.normalize(torch.randn(4, 20)) * torch.tensor([[0.1], [0.1], [30.0], [30.0]]))
    x = torch.randn(400, 20) * 0.3
    y = net(x).argmax(1)
    assert keeps_its_promise([agreements(net, *part) for part in zip(x.split(batch), y.split(batch), strict=True)])


@pytest.mark.parametrize("seed", range(2))
def test_where_features_differ_in_scale_screening_looks_farther(seed):
    net, notes = make_net(lambda: mlp(20, 64, 64, 6, init="default"), seed=seed, dtype=torch.float32), []
    x = torch.randn(2000, 20)
    y = (x @ torch.randn(20, 6)).argmax(1)
    x *= torch.tensor([3.0, 0.03]).repeat_interleave(10)
    optimiser = torch.optim.SGD(net.parameters(), 0.05, 0.9)
    for i, rows in enumerate(batches(2000, 100, 300)):
        if i % 15 == 0:
            notes.append(agreements(net, x[rows], y[rows]))
        optimiser.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    assert keeps_its_promise(notes)


def test_an_ordinary_net_is_not_looked_at_farther_than_need_be(digits):
    x, y = digits[0][:100].float(), digits[1][:100]
    net = make_net(lambda: mlp(64, 200, 200, 10), dtype=torch.float32)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, 0.9)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    points = []
    net.register_forward_pre_hook(lambda module, args: points.append(len(args[0])))
    amm = RecordingAMM()
    amm(net, x, y, logits=net(x))
    assert amm.last.correct == 100 and amm.last.attacked < 40 and sum(points[1:]) < 250


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e-30, 1e-200, 1e200])
def test_the_cosine_is_right_for_vectors_of_all_sizes(size):
    a, b = torch.tensor([3.0, 4.0], dtype=torch.float64) * size, torch.tensor([4.0, 3.0], dtype=torch.float64) * size
    assert cosine(a, a) == pytest.approx(1) and cosine(a, -a) == pytest.approx(-1)
    assert cosine(a, b) == pytest.approx(0.96) and cosine(a, torch.zeros_like(a)) == 0
