"""Facts about gradients at many points."""

import pytest
import torch
from conftest import assert_same, make_net
from torch import nn

from ammlib.margin.deepfool import nearest
from ammlib.margin.gradients import STRATEGIES, gap_and_gradient, look, strategy_for


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("layers", [(), (nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 1), nn.Flatten())])
@pytest.mark.parametrize(
    "wanted", [(0, 0, 0, 0, 3), (1, 1, 1, 1, 1), (2, 1, 3, 1, 3), (3, 3, 3, 3, 3), (1, 1, 1, 9, 9)]
)
def test_gradients_towards_many_rivals_are_those_towards_each(layers, wanted, strategy):
    net = make_net(lambda: nn.Sequential(*layers, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 10)))
    view = look(net, torch.randn(5, 6).double())
    order = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i)) for i in range(5)])
    target = (view.prediction.unsqueeze(1) + 1 + order[:, : max(wanted)]) % 10
    needed = torch.arange(max(wanted)) < torch.tensor(wanted).unsqueeze(1)
    g = STRATEGIES[strategy].gradients(net, view, target, torch.where(needed, -1.0, -torch.inf))
    row, k = needed.nonzero(as_tuple=True)
    assert g.shape == (max(wanted), 5, 6)
    assert_same(g[k, row], gap_and_gradient(net, view.points[row], view.prediction[row], target[row, k])[1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_rival_there_is_no_nearest_boundary(strategy):
    net, points = make_net(lambda: nn.Linear(6, 10)), torch.randn(5, 6).double()
    rivals, nothing = torch.arange(1, 10).expand(5, 9), torch.full((5, 9), -torch.inf).double()
    assert nearest(net, look(net, points), rivals, nothing, STRATEGIES[strategy]) is None


def test_the_device_chooses_the_strategy_unless_it_is_named():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert strategy_for("auto", cpu) is STRATEGIES["frugal"] and strategy_for("auto", gpu) is STRATEGIES["batched"]
    assert strategy_for("batched", cpu) is STRATEGIES["batched"]
    assert strategy_for("auto", gpu, 3 * 224 * 224) is STRATEGIES["frugal"]  # whose rivals would not fit into memory
    with pytest.raises(ValueError, match="unknown strategy 'fast'; choose from frugal, batched"):
        strategy_for("fast", cpu)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_between_a_class_and_itself_there_is_no_boundary(strategy):
    net, x = make_net(lambda: nn.Linear(6, 3)), torch.randn(4, 6).double()
    view = look(net, x)
    for target in (view.prediction.unsqueeze(1), view.prediction.unsqueeze(1).expand(-1, 2)):
        near = nearest(net, look(net, x), target, torch.zeros(target.shape).double(), STRATEGIES[strategy])
        assert (near.distance == torch.inf).all()
