"""Facts about the evaluation: margins are DeepFool's in any form of data, and the summary is what its names say."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ammlib import deepfool, margins
from ammlib.data.datasets import load_data
from ammlib.margin.margins import Margins
from ammlib.margin.tight import tight
from ammlib.training.evaluate import error_rate, evaluate
from ammlib.training.recipes import make_recipe
from ammlib.training.train import train

DATA = load_data("digits")
IMAGES, X, Y = DATA.x_test[:150], DATA.x_test[:150].float() / 255, DATA.y_test[:150]


@pytest.fixture(scope="module")
def model():
    return train(make_recipe("digits", "mlp", "reference", epochs=2), 0, progress=False).model


def changing_net():
    """A net that acts differently in train mode, one part of which is in eval mode already."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.Dropout(), nn.ReLU(), nn.Linear(20, 10))
    net.train()[1].eval()
    return net


FORMS = {
    "images": (X, False),
    "images and labels": ((X, Y), True),
    "loader of images": (DataLoader(X, batch_size=40), False),
    "loader of tuples of images": (DataLoader(TensorDataset(X), batch_size=40), False),
    "loader of images and labels": (DataLoader(TensorDataset(X, Y), batch_size=40), True),
}


@pytest.mark.parametrize("form", FORMS)
def test_margins_are_deepfools_on_the_whole_batch(form, model):
    data, labelled = FORMS[form]
    found, expected = margins(model, data, batch_size=64, progress=False), deepfool(model, X)
    torch.testing.assert_close(found.norm, expected.norm, rtol=0, atol=1e-5)
    assert torch.equal(found.success, expected.success) and torch.equal(found.steps, expected.steps)
    if labelled:
        assert torch.equal(found.correct, expected.prediction == Y)
    else:
        assert found.correct is None


@pytest.mark.parametrize("batch_size", [1, 7, 150, 1000])
def test_the_batch_size_does_not_change_the_margins(batch_size, model):
    found = margins(model, (X[:40], Y[:40]), batch_size=batch_size, progress=False)
    expected = margins(model, (X[:40], Y[:40]), progress=False)
    torch.testing.assert_close(found.norm, expected.norm, rtol=0, atol=1e-5)
    assert torch.equal(found.correct, expected.correct) and torch.equal(found.success, expected.success)


@pytest.mark.parametrize("options", [{"steps": 1}, {"overshoot": 0.5}, {"num_rivals": 2}], ids=str)
def test_options_are_those_of_the_attack(options, model):
    found = margins(model, X, progress=False, **options).norm
    torch.testing.assert_close(found, deepfool(model, X, **options).norm, rtol=0, atol=1e-5)
    assert not torch.allclose(found, deepfool(model, X).norm, atol=1e-3)


def test_the_method_may_be_tighter(model):
    found = margins(model, (X, Y), method="tight", batch_size=64, progress=False, steps=5)
    torch.testing.assert_close(found.norm, tight(model, X, steps=5).norm, rtol=0, atol=1e-5)
    assert found.success.all() and (found.norm < margins(model, X, progress=False).norm).all()
    with pytest.raises(ValueError, match="unknown method 'nearest'; choose from deepfool, tight"):
        margins(model, X, method="nearest")


def test_the_summary_has_the_numbers_of_numpy(model):
    found = margins(model, (X, Y), steps=1, overshoot=0.0, progress=False)  # so that some attacks fail
    norm, summary = found.norm.double().numpy(), found.summary()
    quantiles = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
    expected = {name: np.quantile(norm, q) for name, q in quantiles.items()}
    expected |= {"samples": 150, "mean": norm.mean(), "success": found.success.numpy().mean()}
    expected |= {"error": 100 * (1 - found.correct.numpy().mean())}
    assert summary == pytest.approx(expected, rel=1e-12) and summary.keys() == expected.keys()
    assert 0 < summary["success"] < 1 and 0 < summary["error"] < 100
    assert "error" not in margins(model, X, progress=False).summary()
    assert f"mean {norm.mean():.4g}" in repr(found)


def test_a_single_sample_has_a_summary():
    one = torch.ones(1)
    assert Margins(one, one.bool(), one.long(), None).summary()["q95"] == 1.0


@pytest.mark.parametrize(
    "data, message",
    [
        ((X, Y[:-1]), r"as many labels as images are needed, got \[150, 149\]"),
        ((X[:-1], Y), r"as many labels as images are needed, got \[149, 150\]"),
        (X[:0], "empty"),
        ((X[:0], Y[:0]), "empty"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "no samples"),
    ],
    ids=["few labels", "few images", "no images", "nothing", "empty loader"],
)
def test_data_without_meaning_are_refused(data, message, model):
    with pytest.raises(ValueError, match=message):
        margins(model, data, progress=False)


def test_images_must_be_scaled(model):
    with pytest.raises(TypeError, match=r"scale uint8 images to \[0, 1\]"):
        margins(model, IMAGES, progress=False)


@pytest.mark.parametrize("n", [1, 150])
def test_the_error_is_that_of_a_loop_over_images(n, model):
    with torch.no_grad():
        wrong = [int(model(x[None].float() / 255).argmax() != y) for x, y in zip(IMAGES[:n], Y[:n], strict=True)]
    assert error_rate(model, IMAGES[:n], Y[:n]) == pytest.approx(100 * sum(wrong) / n, rel=1e-12)


def test_the_error_of_a_single_logit_is_that_of_its_sign():
    torch.manual_seed(0)
    net, y = nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), Y % 2
    with torch.no_grad():
        expected = 100 * ((net(X).squeeze(1) > 0).long() != y).double().mean()
    assert error_rate(net, IMAGES, y) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 5, 100])])
def test_evaluate_takes_the_error_over_all_and_the_margin_over_the_rows(rows, model):
    found = evaluate(model, IMAGES, Y, rows, progress=False)
    norm = deepfool(model, X).norm if rows is None else deepfool(model, X).norm[rows]
    assert found["error"] == error_rate(model, IMAGES, Y) and found["test_images"] == 150
    assert found["margin"] == pytest.approx(float(norm.mean()), abs=1e-5)
    assert found["margin_samples"] == len(norm) and found["margin_success"] == 1.0
    assert found["margin_q25"] == pytest.approx(float(norm.quantile(0.25)), abs=1e-5)


@pytest.mark.parametrize(
    "measure",
    [lambda net: margins(net, (X, Y), progress=False), lambda net: error_rate(net, IMAGES, Y)],
    ids=["margins", "error_rate"],
)
def test_a_model_is_measured_in_eval_mode_and_left_as_it_was(measure):
    net, evaluated = changing_net(), changing_net().eval()
    state, modes = {name: w.clone() for name, w in net.state_dict().items()}, [m.training for m in net.modules()]
    random_state = torch.get_rng_state()
    assert str(measure(net)) == str(measure(evaluated))
    assert [m.training for m in net.modules()] == modes and torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(w, state[name]) for name, w in net.state_dict().items())
    assert all(w.grad is None and w.requires_grad for w in net.parameters())
