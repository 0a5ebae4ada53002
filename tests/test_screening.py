"""Facts about the screened MIN: over a training run it keeps what the exact one keeps, and pulls the same way."""

from statistics import mean

import pytest
import torch
import torch.nn.functional as F
from conftest import RecordingAMM, make_net
from torch import nn

from ammlib.experiments.cost.screening import agreement


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
