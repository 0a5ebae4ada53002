"""Facts about projected gradient ascent: on linear classifiers it succeeds exactly where the boundary is in reach."""

import pytest
import torch
from conftest import Affine, half_right, make_net
from oracle import NETS
from torch import nn

from ammlib.margin.pgd import pgd, robust
from ammlib.margin.tight import tight


@pytest.mark.parametrize("radius", [0.05, 0.2, 1.0])
def test_a_linear_classifier_of_two_classes_is_robust_up_to_its_distance(radius):
    torch.manual_seed(0)
    model, x = Affine((4, 4), 2), torch.randn(200, 4, 4, dtype=torch.float64)
    y = half_right(model, x) % 2
    correct, distance = model(x).argmax(1) == y, model.distance(x, model(x).argmin(1, keepdim=True)).squeeze(1)
    assert torch.equal(robust(model, x, y, radius), correct & (distance > radius))


@pytest.mark.parametrize("net", NETS)
def test_points_stay_within_the_radius_and_beat_what_lies_within_it(net, digits):
    model, x = make_net(NETS[net], 2), digits[0][:60]
    y = model(x).argmax(1)
    nearest = tight(model, x).norm
    radius = float(nearest.median())
    there = pgd(model, x, y, radius)
    assert (there - x).flatten(1).norm(dim=1).max() <= radius * (1 + 1e-9)
    fooled = ~robust(model, x, y, radius)
    assert fooled[nearest < 0.8 * radius].all()  # well within reach
    assert not fooled[nearest > 1.25 * radius].any()  # or the margin would not be tight


def test_without_a_gradient_points_stay_where_they_are():
    model, x = nn.Linear(3, 4), torch.randn(5, 3)
    nn.init.zeros_(model.weight)
    assert torch.equal(pgd(model, x, model(x).argmax(1), 1.0), x)


def test_the_radius_must_be_positive():
    with pytest.raises(ValueError, match="radius must be positive, got 0"):
        pgd(Affine((5,), 3), torch.randn(2, 5, dtype=torch.float64), torch.tensor([0, 1]), 0)
