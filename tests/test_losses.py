"""Facts about the hinge losses: by hand, and beside AMM."""

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from trainings import start, tiny

from ammlib.methods.losses import hinge, soft_margin, squared_hinge

pytestmark = pytest.mark.usefixtures("own_folders")


def test_hinge_losses_by_hand():
    f, y = torch.tensor([[2.0, 0.5, -1.0], [0.0, 3.0, 2.5]]), torch.tensor([0, 2])
    assert hinge(f, y).item() == pytest.approx((0 + 1.5) / 2)
    assert squared_hinge(f, y).item() == pytest.approx(((0 + 1.5**2 + 0) + (1 + 16 + 0)) / 2)
    expected = -math.log(math.exp(0.5) / (math.exp(0.5) + math.exp(0.0) + math.exp(3.0)))
    assert soft_margin(f[1:], y[1:], 2.0).item() == pytest.approx(expected)
    assert soft_margin(f, y, 0.0) == F.cross_entropy(f, y)


def test_amm_trains_beside_the_multi_class_hinge():
    training = start(tiny("amm", loss="hinge"))
    x, y = next(training.batches.epoch(0))
    expected = hinge(deepcopy(training.model)(x), y)
    training.take_step(x, y)
    assert training.sums["loss"] / 20 == pytest.approx(expected.item()) and training.sums["regulariser"] > 0
