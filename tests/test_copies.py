"""Facts about copies: a regulariser, and a model that holds one, are the same when stored and loaded."""

import copy
import io
import pickle

import pytest
import torch
from classifiers import batch, mlp
from conftest import assert_same, gradients, make_net
from torch import nn

from ammlib import AMM, Elsayed
from ammlib.margin.baselines import Refined


class Holder(nn.Module):
    """A model that brings its regulariser along."""

    def __init__(self, net, regulariser):
        super().__init__()
        self.net, self.regulariser = net, regulariser

    def forward(self, x):
        return self.net(x)


def saved_and_loaded(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize(
    "make", [AMM, lambda: AMM("avg", "inv"), lambda: AMM(shrinkage="lin"), Elsayed, Refined], ids=range(5)
)
def test_a_regulariser_and_a_model_that_holds_one_survive_a_copy(make, copied, called, digits):
    net = make_net(mlp)
    x, y = batch(net, digits, dtype=torch.float64)
    model = Holder(net, make())
    if called:
        model.regulariser(model, x, y).backward()
    expected = make()(net, x, y)
    other, alone = COPIES[copied](model), COPIES[copied](model.regulariser)
    assert alone(net, x, y) == expected == other.regulariser(other, x, y)
    assert str(other) == str(model) and model.regulariser(model, x, y) == expected
    assert_same(gradients(other.regulariser(other, x, y), other), gradients(expected, net))
