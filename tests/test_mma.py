"""Facts about MMA: its bisected margin, and which samples it trains near the boundary."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ammlib.methods.method import Batch, Task
from ammlib.methods.mma import MMA, bisected, gap, pgd, unit


def test_the_bisected_margin_of_a_linear_model_is_the_distance():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()
    x = 0.3 + 0.4 * torch.rand(20, 1, 8, 8, dtype=torch.float64)
    y = net(x).argmax(1)
    w, f = net[1].weight[1] - net[1].weight[0], net(x)
    distance = (f[:, 1] - f[:, 0]).abs() / w.norm()
    begin = unit(torch.randn_like(x))
    direction = pgd(net, x, y, torch.full((20,), 1.0, dtype=torch.float64), begin, 20)
    found = bisected(net, x, y, direction, most=2.0)
    torch.testing.assert_close(found, distance.detach(), rtol=0.02, atol=2.0 / 2**10)
    assert (gap(f, y) < 0).all() and (gap(f, 1 - y) > 0).all()


def test_mma_trains_near_samples_at_the_boundary_and_remembers_their_margins():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]]))
        net[1].bias.copy_(torch.tensor([-2.5, 2.5]))  # the boundary: x_0 = 1/2
    x = torch.tensor([[0.7, 0.5, 0.5, 0.5], [0.9, 0.5, 0.5, 0.5]], dtype=torch.float64).view(2, 1, 2, 2)
    mma, y = MMA(d_max=0.5, steps=20, clean=0.0), torch.tensor([0, 1])  # the first is correct, the second is not
    mma.begin(net, Task(5, 2, (1, 2, 2), 10))
    loss, logits = mma.loss(net, Batch(x, y, torch.tensor([3, 1])))
    assert loss.item() == pytest.approx((math.log(2) + F.cross_entropy(logits[1:], y[1:]).item()) / 2, abs=0.02)
    assert mma.margins[3].item() == pytest.approx(0.2, abs=5e-3) and (mma.margins[[0, 1, 2, 4]] == 0).all()
    far = MMA(d_max=0.1, clean=0.0)
    far.begin(net, Task(5, 2, (1, 2, 2), 10))
    assert far.loss(net, Batch(x[:1], y[:1]))[0] == 0  # farther than d_max, so that it does not count
