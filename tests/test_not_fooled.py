"""Facts about nets that nothing fools: one warning says why, and healthy nets give none."""

import warnings

import pytest
import torch
from classifiers import REGULARISERS, linear, mlp
from conftest import make_net
from torch import nn

from ammlib import AMM, margins

PROBABILITIES, DEAD = "leave out the final softmax or sigmoid", "the net seems dead"
NOT_FOOLED = {
    "softmax": (lambda: linear(10, nn.Softmax(1), scale=1e4), PROBABILITIES),
    "sigmoid": (lambda: linear(1, nn.Sigmoid()), PROBABILITIES),
    "sigmoid, flat": (lambda: linear(1, nn.Sigmoid(), nn.Flatten(0)), PROBABILITIES),
    "saturated sigmoid": (lambda: linear(1, nn.Sigmoid(), weight=0.0, bias=100.0), PROBABILITIES),
    "sigmoids": (lambda: linear(10, nn.Sigmoid(), scale=1e5), PROBABILITIES),
    "zero": (lambda: linear(10, weight=0.0, bias=0.0), DEAD),
    "constant": (lambda: linear(10, weight=0.0), DEAD),
    "constant logit": (lambda: linear(1, weight=0.0, bias=0.3), DEAD),
    "dead units": (lambda: nn.Sequential(linear(20, nn.ReLU(), bias=-1e3), nn.Linear(20, 10)), DEAD),
}
HEALTHY = {
    "logits": mlp,
    "one logit": lambda: linear(1, bias=0.0),
    "log-softmax": lambda: nn.Sequential(mlp(), nn.LogSoftmax(1)),
    "unsaturated softmax": lambda: nn.Sequential(mlp(), nn.Softmax(1)),
}


def warned(call):
    """The messages of the warnings that a call gives."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in seen]


@pytest.mark.parametrize("kind", NOT_FOOLED)
@pytest.mark.parametrize("aggregation", ["min", "avg"])
def test_where_nothing_is_fooled_the_regulariser_warns_once_and_says_why(aggregation, kind, digits):
    make, why = NOT_FOOLED[kind]
    net, amm, x, y = make_net(make, dtype=torch.float32), AMM(aggregation), digits[0][:20].float(), digits[1][:20] % 2
    seen = warned(lambda: [amm(net, x, y) for _ in range(3)])
    assert len(seen) == 1 and "no sample was fooled, so that the term is zero" in seen[0] and why in seen[0]


@pytest.mark.parametrize("kind", NOT_FOOLED)
def test_where_nothing_is_fooled_margins_warn_once_and_say_why(kind, digits):
    make, why = NOT_FOOLED[kind]
    net, x = make_net(make, dtype=torch.float32), digits[0][:20].float()
    seen = warned(lambda: margins(net, x, batch_size=10, progress=False))
    assert len(seen) == 1 and "no sample changed its class" in seen[0] and why in seen[0]


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_nets_give_no_warning(kind, digits):
    net, x, y = make_net(HEALTHY[kind], dtype=torch.float32), digits[0][:20].float(), digits[1][:20] % 2
    assert warned(lambda: [make()(net, x, y).backward() for make in REGULARISERS.values()]) == []
    assert warned(lambda: margins(net, (x, y), progress=False)) == []


def test_a_warning_points_at_the_callers_line():
    with pytest.warns(UserWarning) as seen:
        AMM()(linear(10, weight=0.0), torch.ones(2, 64), torch.tensor([0, 1]))
        margins(linear(10, weight=0.0), torch.ones(2, 64), progress=False)
    assert [one.filename for one in seen] == [__file__, __file__]


def test_where_few_are_fooled_and_outputs_are_probabilities_margins_say_so():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Softmax(1)), torch.randn(40, 4)
    net[0].weight.data *= 300
    x[:5] *= 1e-3  # near the boundary, where softmax is not saturated
    (message,) = warned(lambda: margins(net, x, progress=False))
    assert message.startswith("only ") and PROBABILITIES in message
