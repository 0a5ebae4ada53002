"""Facts about precision: mixed precision changes nothing, and margins are of the precision of the data."""

import pytest
import torch
import torch.nn.functional as F
from classifiers import TRANSFORMERS, X, Y, batch, mlp, net, numbers, vit
from conftest import assert_same, gradients, make_net
from torch import nn

from ammlib import AMM, Elsayed, deepfool, margins
from ammlib.margin.baselines import Refined
from ammlib.margin.tight import tight


@pytest.mark.parametrize("with_logits", [False, True])
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "torchvision"])
def test_autocast_changes_nothing(kind, precision, with_logits, digits):
    net = make_net(mlp if kind == "mlp" else vit, dtype=torch.float32)
    x, y = batch(net, digits)
    expected = numbers(net, x, y)
    with torch.autocast("cpu", precision):
        logits = net(x) if with_logits else None
    found = numbers(net, x, y, logits, lambda: torch.autocast("cpu", precision))
    assert_same(found, expected, 1e-5)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_logits_of_another_precision_are_not_trusted(precision, digits):
    net = make_net(mlp, dtype=torch.float32)
    x, y = batch(net, digits)
    expected = numbers(net, x, y)
    with torch.autocast("cpu", precision):
        logits = net(x)
    assert logits.dtype == precision
    assert all(map(torch.equal, numbers(net, x, y, logits), expected))


class OfItsOwn(nn.Module):
    """Works in a precision of its own, by its weights or by autocast inside."""

    def __init__(self, dtype, inside):
        super().__init__()
        self.net, self.dtype, self.inside = mlp().to(torch.float32 if inside else dtype), dtype, inside

    def forward(self, x):
        with torch.autocast("cpu", self.dtype, enabled=self.inside):
            return self.net(x if self.inside else x.to(self.dtype))


@pytest.mark.parametrize("strategy", ["frugal", "batched"])
@pytest.mark.parametrize(
    "dtype, inside", [(torch.bfloat16, True), (torch.bfloat16, False), (torch.float64, False)], ids=str
)
def test_logits_may_have_another_precision_than_the_data(dtype, inside, strategy, digits):
    torch.manual_seed(0)
    net, x, y = OfItsOwn(dtype, inside), digits[0][:20].float(), digits[1][:20]
    weak = {"lam": 1.0, "strategy": strategy}  # so that truncation leaves gradients
    for regulariser in (AMM(**weak), AMM("avg", **weak), Elsayed(), Refined()):
        value = regulariser(net, x, y, logits=net(x))
        assert value > 0 and value.dtype == torch.float32 and any(g.any() for g in gradients(value, net))
    for found in (deepfool(net, x, strategy=strategy), tight(net, x), margins(net, (x, y), progress=False)):
        assert found.norm.dtype == torch.float32 and found.norm.isfinite().all() and found.success.any()


def test_a_loss_under_autocast_is_trained_as_usual(digits):
    net = make_net(mlp, dtype=torch.float32)
    x, y = batch(net, digits)
    separate = zip(gradients(F.cross_entropy(net(x), y), net), gradients(AMM()(net, x, y), net), strict=True)
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(x)
        objective = F.cross_entropy(logits, y) + AMM()(net, x, y, logits=logits)
    objective.backward()
    assert_same([p.grad for p in net.parameters()], [a + b for a, b in separate], 0.02)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["mlp", *TRANSFORMERS])
def test_a_model_of_another_precision_than_the_data_is_an_error_that_says_so(kind, dtype, digits):
    net, x = make_net({"mlp": mlp, **TRANSFORMERS}[kind], dtype=dtype), digits[0][:4].float()
    for call in (
        deepfool,
        tight,
        lambda *args: AMM()(*args, digits[1][:4]),
        lambda *args: margins(*args, progress=False),
    ):
        with pytest.raises(
            TypeError, match=f"x is torch.float32, the model's weights are {dtype}: convert one of them"
        ):
            call(net, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_margins_are_of_the_precision_of_x_whatever_the_default_is(dtype, default):
    model, x = net().to(dtype), X.to(dtype)
    torch.set_default_dtype(default)
    try:
        assert tight(model, x).norm.dtype == dtype
        term = Refined()(model, x, Y)
    finally:
        torch.set_default_dtype(torch.float32)
    assert term.dtype == dtype and all(g.isfinite().all() for g in gradients(term, model))
