"""Facts that hold for every classifier, degenerate ones included, looked for by Hypothesis."""

import pytest
import torch
from conftest import gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from ammlib import AMM, deepfool
from ammlib.margin.tight import tight

fuzz = settings(deadline=None, max_examples=60, derandomize=True, database=None)
MODERATE = [0.0, 1e-5, 1e-2, 1.0, 1e2, 1e5]
EXTREME = [*MODERATE, 1e-20, 1e-10, 1e10, 1e20]
HALF = [torch.float16, torch.bfloat16]
LABELS = {
    "all correct": lambda prediction, classes: prediction,
    "none correct": lambda prediction, classes: (prediction + 1) % classes,
    "any": lambda prediction, classes: torch.arange(len(prediction)) % classes,
}


class Constant(nn.Module):
    """Logits that do not depend on x."""

    def __init__(self, classes):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(classes))

    def forward(self, x):
        return self.bias.expand(len(x), -1)


class Cosine(nn.Linear):
    """Logits are angles: weights of any size give the same."""

    def forward(self, x):
        return 10 * F.linear(F.normalize(x), F.normalize(self.weight))


HEADS = {
    "cosine": lambda features, classes: Cosine(features, classes, bias=False),
    "constant": lambda features, classes: Constant(classes),
    "linear": nn.Linear,
    "relu": lambda features, classes: nn.Sequential(nn.Linear(features, 7), nn.ReLU(), nn.Linear(7, classes)),
    "tanh": lambda features, classes: nn.Sequential(nn.Linear(features, 7), nn.Tanh(), nn.Linear(7, classes)),
}


@st.composite
def cases(draw, scales):
    """A net of any kind and of these scales, a batch and its labels."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    classes = draw(st.one_of(st.integers(1, 12), st.integers(1, 1000)))
    x = torch.randn(draw(st.integers(1, 12)), draw(st.integers(1, 6)), generator=generator)
    model = HEADS[draw(st.sampled_from(list(HEADS)))](x.shape[1], classes)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * draw(st.sampled_from(scales)))
            if draw(st.booleans()):  # ties: each value twice
                weight[1::2] = weight[: len(weight) // 2 * 2 : 2]
        x *= draw(st.sampled_from(scales))
        dtype = draw(st.sampled_from([torch.float32, torch.float64, *HALF]))
        x, model = x.to(dtype), model.to(dtype)
        prediction = predict(model, x)
    return model, x, LABELS[draw(st.sampled_from(list(LABELS)))](prediction, max(2, classes))


def predict(model, x):
    f = model(x)
    return f.argmax(1) if f.shape[1] > 1 else (f.squeeze(1) > 0).long()


def call(function, model, x):
    """The result, or None where x or logits overflow, which must be an error that says so."""
    if x.isfinite().all() and model(x).isfinite().all():
        return function()
    with pytest.raises(ValueError, match="(x|logits) contains NaN or infinite"):
        function()
    return None


@fuzz
@given(cases(EXTREME), st.booleans())
def test_success_is_true_exactly_where_the_prediction_changed(case, targeted):
    model, x, y = case
    result = call(lambda: deepfool(model, x, y if targeted else None), model, x)
    if result is None:
        return
    assert result.delta.isfinite().all() and result.norm.isfinite().all()
    assert torch.equal(result.delta.flatten(1).norm(dim=1), result.norm)
    before, after = predict(model, x), predict(model, x + result.delta)
    wanted = torch.where(before == y, after != before, after == y) if targeted else after != before
    assert torch.equal(result.success, wanted & model(x + result.delta).isfinite().all(1))


@fuzz
@given(cases(EXTREME), st.integers(1, 8))
def test_the_tight_margin_is_never_larger_and_its_points_really_change_the_prediction(case, steps):
    model, x, _ = case
    result = call(lambda: tight(model, x, steps=steps), model, x)
    if result is None:
        return
    start = deepfool(model, x)
    assert result.delta.isfinite().all() and torch.equal(result.delta.flatten(1).norm(dim=1), result.norm)
    assert torch.equal(result.success, predict(model, x + result.delta) != predict(model, x))
    assert (result.success >= start.success).all() and (result.norm <= start.norm)[start.success].all()


BOUNDED = st.tuples(cases(EXTREME), st.sampled_from(["exp", "inv"]))
LINEAR = st.tuples(cases(MODERATE), st.just("lin"))  # without a bound: it overflows where the margin's derivative does


@fuzz
@given(BOUNDED | LINEAR, st.sampled_from(["min", "avg"]), st.sampled_from(["auto", None]), st.booleans())
def test_regulariser_and_its_gradients_are_finite(case, aggregation, screen, high_order):
    (model, x, y), shrinkage = case
    amm = AMM(aggregation, shrinkage, screen=screen, high_order=high_order)
    value = call(lambda: amm(model, x, y), model, x)
    if value is not None:
        assert value.isfinite() and amm.last.kept <= amm.last.fooled <= len(x)
        assert all(g.isfinite().all() for g in gradients(value, model))


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("targeted", [False, True])
def test_logits_whose_difference_overflows_have_no_boundary(weight, targeted):
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, weight)
    model.bias.data = torch.tensor([3e38, -3e38])
    result = deepfool(model, torch.ones(3, 2), torch.ones(3, dtype=torch.long) if targeted else None)
    assert not result.success.any() and (result.norm == 0).all()


@pytest.mark.parametrize("shrinkage", ["exp", "inv"])
def test_margins_too_far_to_differentiate_leave_the_gradient_finite(shrinkage):
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight[0].data, 1e-20)
    nn.init.constant_(model.weight[1].data, -1e-20)
    model.bias.data = torch.tensor([0.5, 0.0])
    value = AMM("avg", shrinkage)(model, torch.ones(2, 3), torch.tensor([0, 1]))
    assert value.isfinite() and all(g.isfinite().all() for g in gradients(value, model))
