"""Facts about what a classifier gives: logits in any form of output, and an error that names what is none."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from classifiers import X, Y, batch, mlp, net, numbers
from conftest import make_net
from torch import nn

from ammlib import AMM, deepfool, margins
from ammlib.margin.tight import tight


class ModelOutput(OrderedDict):
    """As Hugging Face's: entries are attributes too, and absent ones are None."""

    def __init__(self, logits):
        super().__init__(logits=logits)
        self.logits, self.loss = logits, None

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


class Gives(nn.Module):
    """A net with another form of output."""

    def __init__(self, net, form):
        super().__init__()
        self.net, self.form = net, form

    def forward(self, x):
        return self.form(self.net(x))


OUTPUTS = {
    "object": lambda f: SimpleNamespace(logits=f, hidden=None),
    "named tuple": namedtuple("Output", "logits"),
    "dict": lambda f: {"loss": None, "logits": f},
    "model output": ModelOutput,
}
OTHERS = {"tuple": lambda f: (f, f), "NoneType": lambda f: None, "dict": lambda f: {"out": f}, "list": lambda f: [f]}


@pytest.mark.parametrize("form", OUTPUTS)
def test_an_output_with_logits_is_as_good_as_logits(form, digits):
    net = make_net(mlp, dtype=torch.float32)
    x, y = batch(net, digits)
    model, expected = Gives(net, OUTPUTS[form]), numbers(net, x, y)
    assert all(map(torch.equal, numbers(model, x, y), expected))
    assert all(map(torch.equal, numbers(model, x, y, logits=model(x)), expected))


@pytest.mark.parametrize("form", OTHERS)
def test_any_other_output_is_an_error_that_names_it(form, digits):
    model, x = Gives(make_net(mlp, dtype=torch.float32), OTHERS[form]), digits[0][:4].float()
    calls = (
        lambda: deepfool(model, x),
        lambda: AMM()(model, x, digits[1][:4]),
        lambda: AMM()(model.net, x, digits[1][:4], logits=OTHERS[form](model.net(x)) or ()),
        lambda: margins(model, x, progress=False),
    )
    for call in calls[:2] + calls[3:] if form == "NoneType" else calls:
        with pytest.raises(TypeError, match=f"tensor of logits, or an output with `.logits`; got {form}"):
            call()


@pytest.mark.parametrize("classes", [1, 10])
def test_a_net_that_squeezes_a_batch_of_one_has_the_numbers_of_one_that_does_not(classes, digits):
    net = make_net(lambda: nn.Sequential(mlp(), nn.Linear(10, classes)), dtype=torch.float32)
    squeezing, x, y = Gives(net, torch.squeeze), digits[0][:20].float(), digits[1][:20] % 2
    assert all(map(torch.equal, numbers(squeezing, x, y), numbers(net, x, y)))
    for i in range(3):
        one, label = x[i : i + 1], y[i : i + 1]
        assert torch.equal(AMM()(squeezing, one, label, logits=squeezing(one)), AMM()(net, one, label))


@pytest.mark.parametrize(
    "form, error, message",
    [
        (lambda f: f.argmax(1), TypeError, "floating-point, got torch.int64; predicted classes have no margin"),
        (lambda f: f > 0, TypeError, "floating-point, got torch.bool"),
        (torch.mean, ValueError, r"logits must have shape \(4, classes\), got \(1,\)"),
        (lambda f: f[:3], ValueError, r"logits must have shape \(4, classes\), got \(3, 10\)"),
        (lambda f: f[:, :, None], ValueError, r"logits must have shape \(4, classes\), got \(4, 10, 1\)"),
    ],
)
def test_a_tensor_that_holds_no_logits_is_an_error_that_says_so(form, error, message, digits):
    model, x, y = Gives(make_net(mlp, dtype=torch.float32), form), digits[0][:4].float(), digits[1][:4]
    for call in (lambda: deepfool(model, x), lambda: AMM()(model, x, y), lambda: margins(model, x, progress=False)):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("classes", [2, 9])
@pytest.mark.parametrize("screen", ["auto", None])
def test_logits_of_another_model_are_refused(classes, screen):
    with pytest.raises(ValueError, match=f"logits are of {classes} classes, the model gives 5"):
        AMM(screen=screen)(net(), X, Y % 2, logits=torch.randn(12, classes))


@pytest.mark.parametrize("call", [deepfool, tight, margins, lambda model, x: AMM()(model, x, Y)])
def test_a_function_is_no_classifier(call):
    with pytest.raises(TypeError, match="a classifier is an nn.Module, got a function"):
        call(lambda x: x, X)
