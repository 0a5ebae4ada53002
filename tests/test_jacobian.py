"""Facts about the Jacobian terms: those of a linear model, and Sokolić's layer by layer."""

import pytest
import torch
from conftest import Affine, make_net
from torch import nn
from trainings import NETS

from ammlib.methods.jacobian import Jacobian, Sokolic


def test_jacobian_terms_of_a_linear_model():
    torch.manual_seed(0)
    net, x, y = Affine((1, 8, 8), 10), torch.rand(4, 1, 8, 8, dtype=torch.float64), torch.arange(4)
    values = torch.stack([Jacobian(1.0)(net, x, y) for _ in range(4000)])
    exact = net.weight.square().sum() / 2
    assert values.mean().item() == pytest.approx(exact.item(), rel=0.02)


@pytest.mark.parametrize("net", NETS)
def test_sokolic_is_the_layer_wise_gradient_held_constant(net):
    model = make_net(NETS[net])
    x, y = torch.rand(3, 1, 8, 8, dtype=torch.float64), torch.arange(3)
    points, layers = [x], list(model)
    for layer in layers:
        points.append(layer(points[-1]))
    f_y, expected = points[-1].gather(1, y[:, None]).sum(), 0.0
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            (g,) = torch.autograd.grad(f_y, points[i + 1], retain_graph=True)
            inputs = points[i].detach().requires_grad_()
            (pulled,) = torch.autograd.grad(layer(inputs), inputs, g, create_graph=True)
            expected = expected + pulled.square().sum()
    found = Sokolic(0.3)(model, x, y)
    torch.testing.assert_close(found, 0.3 / 6 * expected)
    weights = [layer.weight for layer in layers[:-1] if isinstance(layer, nn.Linear | nn.Conv2d)]
    pairs = zip(torch.autograd.grad(found, weights), torch.autograd.grad(0.3 / 6 * expected, weights), strict=True)
    assert all(torch.allclose(a, b) for a, b in pairs)
