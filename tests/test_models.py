"""Facts about the architectures: sizes of the papers, shapes, initialisation."""

import pytest
import torch
from torch import nn

from ammlib import AMM, MODELS, make_model
from ammlib.models.layers import Centre

PARAMETERS = {("mnist", "mlp"): 1_276_810, ("mnist", "lenet"): 431_080, ("mnist", "liunet"): 484_554}
SHAPES = {"mnist": (1, 28, 28), "digits": (1, 8, 8)}


@pytest.mark.parametrize(("dataset", "arch"), PARAMETERS)
def test_number_of_parameters(dataset, arch):
    assert sum(p.numel() for p in make_model(dataset, arch).parameters()) == PARAMETERS[dataset, arch]


@pytest.mark.parametrize(("dataset", "arch"), [(family, arch) for family, archs in MODELS.items() for arch in archs])
def test_one_amm_step_gives_finite_gradients_for_every_parameter(dataset, arch):
    torch.manual_seed(0)
    model, x, amm = make_model(dataset, arch), torch.rand(8, *SHAPES[dataset]), AMM()
    y = model(x).argmax(1)
    (nn.functional.cross_entropy(model(x), y) + amm(model, x, y)).backward()
    assert amm.last.kept > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_group_norm_of_liunet_has_32_channels_in_a_group():
    norms = [m for m in make_model("mnist", "liunet").modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 10
    assert all(m.num_channels // m.num_groups == 32 for m in norms)


def test_images_enter_in_0_to_1_and_the_mean_is_subtracted_inside():
    model = make_model("mnist", "mlp")
    assert isinstance(model[0], Centre)
    assert torch.allclose(model[0](torch.full((1, 1, 2, 2), 0.1307)), torch.zeros(1, 1, 2, 2), atol=1e-7)


def test_initialisation_is_kaiming_normal_by_fan_in_with_zero_bias():
    torch.manual_seed(0)
    layer = make_model("mnist", "mlp")[1][1]
    assert layer.weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    assert not layer.bias.any()


def test_unknown_names_list_the_choices():
    with pytest.raises(ValueError, match="mlp, lenet, liunet"):
        make_model("mnist", "lenett")
    with pytest.raises(ValueError, match="mnist, digits"):
        make_model("mnits", "mlp")
