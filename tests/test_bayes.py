"""Facts about Bayes by Backprop: its prior, its divergence, and how they count."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from trainings import start, tiny

from ammlib.methods.bayes import Normal, log_mixture

pytestmark = pytest.mark.usefixtures("own_folders")


def test_the_mixture_prior_is_scipy_s():
    w = torch.linspace(-3, 3, 31, dtype=torch.float64)
    s1, s2 = math.exp(-1), math.exp(-7)
    density = 0.25 * norm.pdf(w.numpy(), scale=s1) + 0.75 * norm.pdf(w.numpy(), scale=s2)
    torch.testing.assert_close(log_mixture(w, 0.25, s1, s2), torch.from_numpy(density).log())


def test_the_divergence_is_that_of_the_posterior_from_the_prior():
    torch.manual_seed(0)
    s, mu = 0.3, 0.5
    normal = Normal(torch.full((3,), mu, dtype=torch.float64), rho=math.log(math.expm1(s)))
    epsilon = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    w = mu + s * epsilon
    normal.drawn = epsilon, w
    prior = 0.25 * norm.pdf(w.numpy(), scale=1.5) + 0.75 * norm.pdf(w.numpy(), scale=0.1)
    expected = norm.logpdf(w.numpy(), mu, s).sum() - np.log(prior).sum()
    assert normal.divergence(0.25, 1.5, 0.1).item() == pytest.approx(expected) and normal.drawn is None
    # against one normal prior its mean has a closed form, here 0.874; of the prior from the posterior it were 5.24
    many = Normal(torch.full((40_000,), mu, dtype=torch.float64), rho=math.log(math.expm1(s)))
    many(torch.full((40_000,), mu, dtype=torch.float64))
    closed = math.log(1 / s) + (s**2 + mu**2 - 1) / 2
    assert many.divergence(0.5, 1.0, 1.0).item() / 40_000 == pytest.approx(closed, abs=0.02)


def test_bayes_by_backprop_has_no_weight_decay_and_divides_by_the_samples():
    training = start(tiny("bayes_by_backprop"))
    assert {group["weight_decay"] for group in training.optimizer.param_groups} == {0.0}
    assert training.method.samples == 60
    plain = sum(p.numel() for p in start(tiny("reference")).parameters)
    assert sum(p.numel() for p in training.parameters) == 2 * plain
