"""Facts about the tight margin: exact where the distance is known, near it where it can be looked for."""

import math

import pytest
import torch
from conftest import Affine, assert_same, gradients, half_right, make_net, rivals
from torch import nn

from ammlib import AMM, deepfool
from ammlib.margin.baselines import Refined
from ammlib.margin.tight import tight


class Ellipse(nn.Module):
    """Class 1 outside of x²/9 + y² = 1; the boundary is curved, most at its tips."""

    def forward(self, x):
        return x[:, 0] ** 2 / 9 + x[:, 1] ** 2 - 1


def nearest_of(boundary, x):
    """The distance of each x to the nearest of many points."""
    return torch.cdist(x, boundary).amin(1)


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (3, 4, 4)])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_on_a_linear_classifier_it_is_the_exact_distance(batch, shape):
    torch.manual_seed(batch)
    model, x = Affine(shape, 6), torch.randn(batch, *shape, dtype=torch.float64)
    result = tight(model, x)
    expected = model.distance(x, rivals(model(x))).amin(1)
    torch.testing.assert_close(result.norm, expected.detach(), rtol=1e-6, atol=0)
    assert (model(x + result.delta).argmax(1) != model(x).argmax(1)).all() and result.success.all()


@pytest.mark.parametrize("flat", [False, True])
def test_on_a_single_logit_it_is_the_exact_distance(flat):
    torch.manual_seed(0)
    model, x = Affine((5,), 1, flat=flat), torch.randn(20, 5, dtype=torch.float64)
    f = model(x).flatten()
    torch.testing.assert_close(tight(model, x).norm, (f / model.weight.norm()).abs().detach(), rtol=1e-6, atol=0)


def test_it_finds_the_nearest_point_of_an_ellipse():
    torch.manual_seed(0)
    angle = torch.linspace(0, 2 * math.pi, 100_000, dtype=torch.float64)
    boundary = torch.stack([3 * angle.cos(), angle.sin()], 1)
    x = torch.randn(100, 2, dtype=torch.float64) * torch.tensor([4.0, 2.0])
    x = x[Ellipse()(x) > 0]  # from inside there are two nearest points
    result, expected = tight(Ellipse(), x), nearest_of(boundary, x)
    assert result.success.all()
    torch.testing.assert_close(result.norm, expected, rtol=3e-3, atol=0)
    assert (deepfool(Ellipse(), x).norm / expected).mean() > 1.01


def test_in_the_plane_it_is_nearly_what_a_search_of_all_points_finds():
    net = make_net(
        lambda: nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 3)), 3
    )
    axis = torch.linspace(-3, 3, 1201, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    x = torch.rand(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        classes, own = net(grid).argmax(1), net(x).argmax(1)
    expected = torch.cat([nearest_of(grid[classes != k], x[i : i + 1]) for i, k in enumerate(own)])
    far = expected > 0.05  # of ten steps of the grid
    found, loose = (attack(net, x).norm[far] / expected[far] for attack in (tight, deepfool))
    assert found.median() < 1.01 and found.mean() < 1 + (loose.mean() - 1) / 2


def test_more_steps_come_nearer(digits):
    net = make_net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10)), gain=3)
    x = digits[0][:100]
    mean = [float(attack.norm.mean()) for attack in (deepfool(net, x), *(tight(net, x, steps=n) for n in (3, 10, 40)))]
    assert mean == sorted(mean, reverse=True) and mean[0] > 1.03 * mean[-1]
    assert mean[2] < 1.01 * mean[-1]


def test_without_a_boundary_there_is_none():
    model = nn.Linear(3, 4)
    nn.init.zeros_(model.weight)
    result = tight(model, torch.randn(5, 3))
    assert not result.success.any() and (result.norm == 0).all()


def test_it_takes_a_step_at_least():
    with pytest.raises(ValueError, match="steps must be positive, got 0"):
        tight(Affine((5,), 3), torch.randn(2, 5, dtype=torch.float64), steps=0)


# ---- as a regulariser


def test_its_derivative_is_that_of_the_distance_on_a_linear_classifier():
    torch.manual_seed(0)
    model, x = Affine((5,), 3), torch.randn(30, 5, dtype=torch.float64)
    y, amm = model(x).argmax(1), Refined("avg", "lin", lam=1.0, c=1.0)
    ours = gradients(amm(model, x, y), model)
    theirs = gradients(-model.distance(x, rivals(model(x))).amin(1).mean(), model)
    assert_same(ours, theirs, 1e-3)  # it stops a little beyond the boundary


def test_misclassified_samples_keep_deepfools_margin(digits):
    net = make_net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10)), gain=3)
    x = digits[0][:40]
    wrong = (net(x).argmax(1) + 1) % 10
    assert_same(gradients(Refined()(net, x, wrong), net), gradients(AMM()(net, x, wrong), net))
    refined, usual = Refined("avg", "lin"), AMM("avg", "lin")
    for y in (net(x).argmax(1), half_right(net, x)):
        values = [regulariser(net, x, y).item() for regulariser in (refined, usual)]
        assert values[0] > values[1] and refined.last.kept == usual.last.kept  # smaller margins, less reward
