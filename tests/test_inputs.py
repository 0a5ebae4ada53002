"""Facts about inputs: labels of any form mean the same, and what holds no numbers or no classes is refused."""

import pytest
import torch
from classifiers import linear
from conftest import make_net
from torch import nn

from ammlib import AMM, Elsayed, deepfool, margins
from ammlib.margin.tight import tight

X, Y = torch.linspace(-1, 1, 4 * 64).view(4, 64), torch.arange(4) % 2


# ---- labels


LABELS = {
    "int32": lambda y: y.int(),
    "uint8": lambda y: y.byte(),
    "column": lambda y: y.view(-1, 1),
    "0. or 1.": lambda y: y.float(),
    "column of 0. or 1.": lambda y: y.double().view(-1, 1),
    "bool": lambda y: y.bool(),
}


@pytest.mark.parametrize("classes", [1, 2, 10])
@pytest.mark.parametrize("form", LABELS)
def test_labels_of_any_form_mean_the_same(form, classes, digits):
    net, x, y = make_net(lambda: linear(classes, bias=0.0), dtype=torch.float32), digits[0][:20].float(), digits[1][:20]
    y = y % 2
    given = LABELS[form](y)
    if classes > 2 and given.is_floating_point():
        for call in (deepfool, AMM()):
            with pytest.raises(TypeError, match="labels must be int64 class indices, got torch.float"):
                call(net, x, given)
        return
    assert all(AMM(aggregation)(net, x, given) == AMM(aggregation)(net, x, y) for aggregation in ("min", "avg"))
    assert torch.equal(deepfool(net, x, given).norm, deepfool(net, x, y).norm)
    assert torch.equal(margins(net, (x, given), progress=False).correct, margins(net, (x, y), progress=False).correct)


@pytest.mark.parametrize("y", [[0.5, 1.0], [0.0, torch.nan]])
def test_labels_that_are_no_class_are_refused(y):
    net, x, y = linear(1), torch.ones(2, 64), torch.tensor(y)
    for call in (deepfool, AMM(), lambda net, x, y: margins(net, (x, y), progress=False)):
        with pytest.raises(TypeError, match="labels must be int64 class indices, got torch.float32"):
            call(net, x, y)


@pytest.mark.parametrize("y, given", [(Y.tolist(), "list"), (Y.numpy(), "ndarray")])
def test_labels_that_are_no_tensor_are_refused(y, given):
    for call in (deepfool, AMM(), Elsayed()):
        with pytest.raises(TypeError, match=f"labels must be a tensor, got {given}"):
            call(linear(2), X, y)


# ---- samples


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_tokens_are_refused(dtype):
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(32, 3))
    tokens, y = torch.arange(16, dtype=dtype).view(2, 8) % 10, torch.tensor([0, 1])
    for call in (deepfool, AMM(), lambda net, x, y: margins(net, (x, y), progress=False)):
        with pytest.raises(
            TypeError, match=f"floating-point tensor, got {dtype}; tokens have no margin, embeddings do"
        ):
            call(net, tokens, y)


@pytest.mark.parametrize(
    "x, message",
    [
        (X.numpy(), "x must be a tensor, got ndarray"),
        (X.tolist(), "x must be a tensor, got list"),
        (X.to(torch.complex64), "floating-point tensor, got torch.complex64$"),
        (X.to_sparse(), "dense tensor with values, got torch.sparse_coo on device cpu"),
        (X.to("meta"), "dense tensor with values, got torch.strided on device meta"),
    ],
    ids=["numpy", "list", "complex", "sparse", "meta"],
)
def test_what_holds_no_real_numbers_is_refused(x, message):
    net = linear(2)
    for call in (deepfool, tight, lambda net, x: AMM()(net, x, Y)):
        with pytest.raises(TypeError, match=message):
            call(net, x)
