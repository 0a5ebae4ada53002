"""Facts about gradients at many points."""

import pytest
import torch
from conftest import assert_same, make_net
from torch import nn

from ammlib.margin.gradients import gap_and_gradient, gap_gradients, look


@pytest.mark.parametrize("layers", [(), (nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 1), nn.Flatten())])
@pytest.mark.parametrize("pairs", [(0, 0, 0, 0, 3), (1, 1, 1, 1, 1), (2, 1, 3, 1, 3), (3, 3, 3, 3, 3), (1, 1, 1, 9, 9)])
def test_gradients_of_many_pairs_are_those_of_each(layers, pairs):
    net = make_net(lambda: nn.Sequential(*layers, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 10)))
    points = torch.randn(5, 6).double()
    at, turn = torch.tensor([(point, i) for point, count in enumerate(pairs) for i in range(count)]).unbind(1)
    target, reference = turn + 1, torch.zeros_like(turn)
    expected = gap_and_gradient(net, points[at], reference, target)[1]
    assert_same(gap_gradients(net, look(net, points), at, reference, target, turn), expected)
