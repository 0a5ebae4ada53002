"""Facts about AMM on linear classifiers: closed forms, the support vector machine, covering numbers."""

import math

import pytest
import torch

from ammlib import AMM, deepfool
from ammlib.experiments.linear import (
    affine,
    angle,
    closed_form,
    covering_number,
    direction,
    generalisation_bound,
    half_width,
    hard_margin_svm,
    log10_balls_needed,
    move_deepest,
    random_direction,
    sign,
    signed_margin,
    smallest_margin,
    train_linear,
    two_classes,
    weight_of_margin,
)


def make_amm(method: str, c: float = 2.0) -> AMM:
    return AMM(*method.split("_"), lam=1, c=c, d=c)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("samples", [1, 5, 300])
def test_the_classes_are_balanced_and_separable(samples, seed):
    x, y = two_classes(samples, seed)
    assert x.shape == (2 * samples, 2) and int(y.sum()) == samples
    assert smallest_margin(affine(torch.tensor([1.0, 0.0]), 0), x, y) >= 1


def test_deepfool_measures_the_distance_in_one_step():
    x, y = two_classes(30, seed=1)
    model = affine(random_direction(1), 0.3)
    with torch.no_grad():
        model.weight *= 5  # the boundary moves, the formula stays
    result = deepfool(model, x)
    assert result.success.all() and (result.steps == 1).all()
    torch.testing.assert_close(result.norm, 1.02 * signed_margin(model, x, y).abs())


# ---- AVG+LIN


def test_avg_lin_is_linear_in_w_whatever_the_labels():
    x, y = two_classes(30, seed=2)
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]  # half of them misclassified
    model = affine(random_direction(2), 0.7)
    loss = make_amm("avg_lin")(model, x, y)
    torch.testing.assert_close(loss, -2 * 1.02 * (sign(y) @ x) @ direction(model) / len(x))
    assert abs(torch.autograd.grad(loss, model.bias)[0].item()) < 1e-12


def test_avg_lin_drives_b_to_infinity_when_a_class_is_larger():
    x, y = (t[10:] for t in two_classes(30, seed=2))  # 20 negatives, 30 positives
    for b in (-100.0, 0.0, 100.0):
        model = affine(random_direction(2), b)
        slope = torch.autograd.grad(make_amm("avg_lin")(model, x, y), model.bias)[0].item()
        assert slope == pytest.approx(-2 * 1.02 * 10 / 50)


@pytest.mark.parametrize("b", [-0.5, 0.5])
def test_avg_lin_ends_at_the_closed_form_and_leaves_b_alone(b):
    x, y = two_classes(50, seed=4)
    start = affine(-closed_form(x, y) + 0.01 * random_direction(4), b)
    assert angle(start, closed_form(x, y)) > 170
    model = train_linear(make_amm("avg_lin"), x, y, start)
    assert angle(model, closed_form(x, y)) < 0.5
    assert model.bias.item() == pytest.approx(b, abs=1e-9)
    assert start.bias.item() == b and angle(start, closed_form(x, y)) > 170, "the start was changed"


def test_a_far_sample_turns_avg_lin_and_not_the_svm():
    x, y = two_classes(50, seed=0)
    svm, _ = hard_margin_svm(x, y)
    far, index = move_deepest(x, y, svm, 100.0)
    assert (far != x).any(1).nonzero().tolist() == [[index]] and y[index] == 1
    assert float((far - x).norm()) == pytest.approx(100)
    torch.testing.assert_close(signed_margin(svm, far, y), signed_margin(svm, x, y))
    assert angle(closed_form(far, y), closed_form(x, y)) > 10
    assert angle(hard_margin_svm(far, y)[0], svm) < 0.01
    kept = train_linear(make_amm("min_lin"), far, y, svm, steps=30, rate=0.01)
    assert angle(kept, svm) < 0.1


# ---- MIN and the support vector machine


@pytest.mark.parametrize("seed, b", [(0, 0.5), (1, -0.5)])
def test_min_lin_has_the_direction_and_strip_of_the_svm_but_not_its_b(seed, b):
    x, y = two_classes(50, seed)
    svm, support = hard_margin_svm(x, y)
    gamma = smallest_margin(svm, x, y)
    assert signed_margin(svm, x, y)[support].tolist() == pytest.approx([gamma] * len(support), rel=1e-4)
    start = affine(closed_form(x, y), b)
    assert angle(start, svm) > 5
    model = train_linear(make_amm("min_lin"), x, y, start)
    assert angle(model, svm) < 0.5
    assert half_width(model, x, y) == pytest.approx(gamma, rel=0.01)
    assert smallest_margin(model, x, y) < 0.9 * gamma


def test_min_lin_has_no_slope_in_b_while_it_keeps_both_classes():
    x, y = two_classes(50, seed=0)
    svm, _ = hard_margin_svm(x, y)
    amm = make_amm("min_lin")
    slopes = {}
    for shift in (-0.9, -0.2, 0.0, 0.2, 0.9):
        model = affine(direction(svm), svm.bias.item() + shift)
        slopes[shift] = torch.autograd.grad(amm(model, x, y), model.bias)[0].item(), amm.last.kept
    assert all(kept == 2 and abs(slope) < 1e-12 for shift, (slope, kept) in slopes.items() if abs(shift) < 0.5)
    assert slopes[-0.9][1] == slopes[0.9][1] == 1
    assert slopes[-0.9][0] < 0 < slopes[0.9][0], "b is pushed back"


@pytest.mark.parametrize("method, b", [("min_exp", 0.5), ("min_inv", -0.5)])
def test_min_exp_and_min_inv_are_the_svm(method, b):
    x, y = two_classes(50, seed=0)
    svm, _ = hard_margin_svm(x, y)
    model = train_linear(make_amm(method), x, y, affine(closed_form(x, y), b), steps=180)
    assert angle(model, svm) < 0.5
    assert smallest_margin(model, x, y) == pytest.approx(smallest_margin(svm, x, y), rel=0.01)


def test_min_lin_is_the_svm_in_a_batch_of_fewer_than_ten():
    x, y = two_classes(4, seed=0)
    svm, _ = hard_margin_svm(x, y)
    amm = make_amm("min_lin")
    model = train_linear(amm, x, y, affine(closed_form(x, y), 0.5), steps=180)
    assert amm.last.kept == 1
    assert angle(model, svm) < 0.5
    assert smallest_margin(model, x, y) == pytest.approx(smallest_margin(svm, x, y), rel=0.01)


# ---- shrinkage functions, angles, bounds


@pytest.mark.parametrize(
    "shrinkage, weight",
    [("lin", lambda m: 3 + 0 * m), ("exp", lambda m: 3 * (-3 * m).exp()), ("inv", lambda m: 3 / (1 + 3 * m) ** 2)],
)
def test_the_weight_of_a_sample_by_its_margin(shrinkage, weight):
    m = torch.tensor([-0.3, -0.1, 0.1, 1.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(weight_of_margin(make_amm(f"avg_{shrinkage}", c=3.0), m), weight(m))


@pytest.mark.parametrize("shrinkage, cut", [("exp", math.log(50) / 3), ("inv", (1 - 1 / 50) / 3)])
def test_a_misclassified_sample_beyond_the_truncation_counts_for_nothing(shrinkage, cut):
    m = -cut * torch.tensor([0.99, 1.01], dtype=torch.float64)
    within, beyond = weight_of_margin(make_amm(f"avg_{shrinkage}", c=3.0), m).tolist()
    assert within > 1 and beyond == 0


@pytest.mark.parametrize("degrees", [0, 1e-7, 0.4, 45, 90, 179.9, 180])
def test_angle(degrees):
    turned = torch.tensor([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))], dtype=torch.float64)
    first = torch.tensor([2.0, 0.0], dtype=torch.float64)
    assert angle(first, 3 * turned) == pytest.approx(degrees, abs=1e-9)
    assert angle(affine(first, 1.0), affine(turned, -1.0)) == pytest.approx(degrees, abs=1e-9)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.11, 0.3, 0.5, 0.9])
def test_the_balls_counted_cover_the_cube_and_one_less_a_side_would_not(epsilon, m):
    k = round(covering_number(epsilon, m) ** (1 / m))
    points = torch.cartesian_prod(*[torch.linspace(0, 1, 31)] * m).view(-1, m)

    def farthest(cells: int) -> float:
        """Of a dense grid of points (the corners included) from the nearest middle of a cell."""
        middles = torch.cartesian_prod(*[(torch.arange(cells) + 0.5) / cells] * m).view(-1, m)
        return torch.cdist(points, middles, compute_mode="donot_use_mm_for_euclid_dist").amin(1).max().item()

    assert covering_number(epsilon, m) == k**m
    assert farthest(k) <= epsilon + 1e-6
    assert k == 1 or farthest(k - 1) > epsilon


def test_covering_numbers_have_the_right_order_and_known_values():
    assert covering_number(0.25, 1) == 2 and covering_number(math.sqrt(2) / 2, 2) == 1
    assert log10_balls_needed(0.25, 1) == pytest.approx(math.log10(2))  # an interval of length 1/2
    assert 10 ** log10_balls_needed(0.1, 2) == pytest.approx(1 / (math.pi * 0.01))
    for m in (1, 2, 3, 10, 784):
        for epsilon in (0.05, 0.3, 1.0):
            assert log10_balls_needed(epsilon, m) <= math.log10(covering_number(epsilon, m)) + 1e-12


def test_the_bound_of_the_generalisation_error():
    # γ = 0.5 in the square: 3 x 3 balls of radius 0.25, K = 18
    assert generalisation_bound(0.5, n=100, delta=0.05) == pytest.approx(
        math.sqrt((36 * math.log(2) + 2 * math.log(20)) / 100)
    )
    assert generalisation_bound(0.5, n=400) == pytest.approx(generalisation_bound(0.5, n=100) / 2)
    bounds = [generalisation_bound(gamma, n=100) for gamma in (0.01, 0.1, 0.4, 0.8, 1.5)]
    assert bounds == sorted(bounds, reverse=True) and bounds[0] > 1 > bounds[-1]
    assert generalisation_bound(-0.1, n=10**9) == math.inf
