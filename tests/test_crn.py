"""Facts about CRN: adjoint maps, spectral norms, certified margins."""

import pytest
import torch
from conftest import make_net
from torch import nn
from trainings import NETS, start, tiny

from ammlib.margin.margins import margins
from ammlib.methods.layers import apply, apply_transposed, weighted
from ammlib.methods.method import Task
from ammlib.methods.registry import METHODS
from ammlib.methods.svm import certified_margins, input_shapes, spectral_norm

pytestmark = pytest.mark.usefixtures("own_folders")


def test_the_transposed_map_is_the_adjoint():
    torch.manual_seed(0)
    for layer, shape in ((nn.Linear(7, 4), (2, 7)), (nn.Conv2d(3, 5, 3, stride=2, padding=1), (2, 3, 8, 8))):
        v = torch.randn(shape)
        g = torch.randn_like(apply(layer, v))
        assert (apply(layer, v) * g).sum().item() == pytest.approx(
            (v * apply_transposed(layer, g, v.shape)).sum().item(), rel=1e-4
        )


def test_spectral_norms_stay_at_one_or_below():
    training = start(tiny("crn"))
    for x, y in training.batches.epoch(0):
        for layer, shape in input_shapes(training.model, (1, 8, 8)):
            assert spectral_norm(layer, shape) <= 1
        training.take_step(x, y)


def test_after_training_spectral_norms_are_near_one_and_the_certified_margin_holds():
    training = start(tiny("crn", C=1.0, epochs=10))
    end_epoch, norms = training.end_epoch, []

    def noted():
        norms.append([spectral_norm(layer, shape) for layer, shape in input_shapes(training.model, (1, 8, 8))])
        end_epoch()

    training.end_epoch = noted
    training.run(progress=False)
    assert max(max(found) for found in norms) <= 1 and min(norms[-1]) > 0.98
    x = training.x_test[:30].float() / 255
    certified, tight = certified_margins(training.model, x), margins(training.model, x, method="tight", progress=False)
    assert (certified > 0).all() and (certified <= tight.norm + 1e-5)[tight.success].all() and tight.success.any()


def test_hidden_layers_that_never_stretch_are_left_as_they_are():
    ours, plain = start(tiny("crn", C=1.0)), start(tiny("dlsvm", C=1.0))
    with torch.no_grad():
        for layer in weighted(ours.model)[:-1]:
            layer.weight *= 0.3
    plain.model.load_state_dict(ours.model.state_dict())
    for x, y in ours.batches.epoch(0):
        for training in (ours, plain):
            training.take_step(x, y)
        assert max(spectral_norm(layer, shape) for layer, shape in input_shapes(ours.model, (1, 8, 8))) < 0.9
        pairs = zip(ours.model.parameters(), plain.model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("net", NETS)
def test_a_certified_margin_never_exceeds_the_tight_one(net):
    torch.manual_seed(0)
    model = make_net(NETS[net], gain=5.0)
    system = METHODS["crn"].make()
    system.begin(model, Task(60, 10, (1, 8, 8), 1))
    norms = [spectral_norm(layer, shape) for layer, shape in input_shapes(model, (1, 8, 8))]
    assert norms == pytest.approx([1.0] * len(norms), abs=0.02)
    x = torch.rand(30, 1, 8, 8, dtype=torch.float64)
    certified, tight = certified_margins(model, x), margins(model, x, method="tight", progress=False)
    assert (certified > 0).all() and (certified <= tight.norm + 1e-9)[tight.success].all()
    assert tight.success.any()
