"""Facts about the toy experiment (section 3.3.3)."""

import pytest
import torch
from torch import nn

from ammlib import load_data, make_model, make_recipe, train
from ammlib.experiments import toy
from ammlib.training.studies import study


def test_the_points_fill_the_papers_rectangles():
    data = load_data("toy")
    assert data.family == "toy" and data.num_classes == 2
    for x, y in (data.train, data.test):
        assert x.dtype == torch.float32 and x.shape == (400, 2, 1, 1) and y.bincount().tolist() == [200, 200]
        for label, low, high in ((0, (-1.01, -4.0), (-0.99, 2.0)), (1, (0.99, -2.0), (1.01, 4.0))):
            points = x[y == label].flatten(1)
            low, high = torch.tensor(low), torch.tensor(high)
            assert (points >= low - 1e-6).all() and (points <= high + 1e-6).all()
            assert ((points.amax(0) - points.amin(0)) > 0.95 * (high - low)).all()
    assert not torch.equal(data.x_train, data.x_test)


def linear(w, b):
    model = make_model("toy", "linear")
    layer = next(module for module in model.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([w]))
        layer.bias.fill_(b)
    return model


def test_achieved_is_the_exact_signed_distance():
    x, y = load_data("toy").test
    assert toy.achieved(linear((3.0, 0.0), 0.0)) == pytest.approx(
        {"accuracy": 100, "angle": 0, "margin": float(x[:, 0].abs().min())}
    )
    tilted = toy.achieved(linear((1.0, 1.0), 0.0))
    signed = (x.flatten(1).sum(1) / 2**0.5) * (2 * y - 1)
    assert tilted["angle"] == pytest.approx(45) and tilted["margin"] == pytest.approx(float(signed.min()), rel=1e-5)
    assert tilted["accuracy"] == pytest.approx(100 * float((signed > 0).float().mean()))
    assert toy.achieved(linear((-1.0, 0.0), 0.0))["accuracy"] == 0


def test_fig1_has_six_configurations_of_the_papers_protocol_with_five_seeds():
    runs = study("fig1")
    assert len(runs) == 30 and len({recipe.method for recipe, _ in runs}) == 6
    for recipe, _ in runs:
        assert (recipe.scale, recipe.batch, recipe.epochs, recipe.lr, recipe.loss) == ("full", 20, 1000, 0.1, "none")
        assert (recipe.momentum, recipe.weight_decay) == (0.9, 1e-4)
        assert recipe.decay == ((250, 0.5), (500, 0.25), (750, 0.125))


def test_a_few_epochs_show_the_claim_of_fig1():
    found = {}
    for method in ("avg_lin", "avg_exp", "amm"):
        recipe = make_recipe("toy", "linear", method, epochs=10)
        found[method] = toy.achieved(train(recipe, seed=0, progress=False).model)
    assert found["avg_lin"]["margin"] < 0 < found["avg_exp"]["margin"] < found["amm"]["margin"]
    assert found["amm"]["margin"] > 0.9 * toy.LARGEST_MARGIN


def test_a_brief_training_shows_the_claim_too():
    found = {a: toy.achieved(toy.train_briefly(a, "lin", 1.0, 1.0, 1.0, seed=0)) for a in ("avg", "min")}
    assert found["avg"]["margin"] < 0 and found["min"]["margin"] > 0.9 * toy.LARGEST_MARGIN
