"""Facts about gradients at many points."""

import pytest
import torch
from conftest import assert_same, make_net
from torch import nn

from ammlib.margin.gradients import STRATEGIES, gap_and_gradient, look, strategy_for


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("layers", [(), (nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 1), nn.Flatten())])
@pytest.mark.parametrize("pairs", [(0, 0, 0, 0, 3), (1, 1, 1, 1, 1), (2, 1, 3, 1, 3), (3, 3, 3, 3, 3), (1, 1, 1, 9, 9)])
def test_gradients_of_many_pairs_are_those_of_each(layers, pairs, strategy):
    net = make_net(lambda: nn.Sequential(*layers, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 10)))
    points, rivals = torch.randn(5, 6).double(), torch.arange(1, 10).expand(5, 9)
    reference = torch.zeros(5, dtype=torch.long)
    order = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i)) for i in range(5)])
    wanted = order < torch.tensor(pairs).unsqueeze(1)  # anywhere among the rivals
    gap = -order.double() - 1  # the wanted have the smallest
    found = STRATEGIES[strategy].gradients(net, look(net, points), reference, rivals, gap, wanted)
    row, k = (found.gap > -torch.inf).nonzero(as_tuple=True)
    target = found.target[row, k]
    measured = torch.zeros(5, 10, dtype=torch.bool).index_put((row, target), torch.tensor(True))
    assert (measured[:, 1:] >= wanted).all()
    assert_same(found.g[found.place[row, k]], gap_and_gradient(net, points[row], reference[row], target)[1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_no_pair_is_wanted_there_are_no_gradients(strategy):
    net, points = make_net(lambda: nn.Linear(6, 10)), torch.randn(5, 6).double()
    rivals, reference = torch.arange(1, 10).expand(5, 9), torch.zeros(5, dtype=torch.long)
    nothing = torch.zeros(5, 9, dtype=torch.bool)
    gap = -torch.ones(5, 9).double()
    assert STRATEGIES[strategy].gradients(net, look(net, points), reference, rivals, gap, nothing) is None


def test_the_device_chooses_the_strategy_unless_it_is_named():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert strategy_for("auto", cpu) is STRATEGIES["frugal"] and strategy_for("auto", gpu) is STRATEGIES["batched"]
    assert strategy_for("batched", cpu) is STRATEGIES["batched"]
    assert strategy_for("auto", gpu, 3 * 224 * 224) is STRATEGIES["frugal"]  # whose rivals would not fit into memory
    with pytest.raises(ValueError, match="unknown strategy 'fast'; choose from frugal, batched"):
        strategy_for("fast", cpu)
