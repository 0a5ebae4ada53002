"""Facts about transformers: the numbers of plain attention, which only second derivatives take."""

import pytest
import torch
import torch.nn.functional as F
from classifiers import TRANSFORMERS, Attention, batch, numbers
from conftest import assert_same, make_net
from torch.nn.attention import SDPBackend, sdpa_kernel

from ammlib import AMM, Elsayed, margins


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_transformer_has_the_numbers_of_plain_attention(kind, dtype, tolerance, digits):
    net = make_net(TRANSFORMERS[kind], dtype=dtype)
    x, y = batch(net, digits, dtype=dtype)
    ours = numbers(net, x, y)
    with sdpa_kernel(SDPBackend.MATH):
        theirs = numbers(net, x, y)
    assert_same(ours, theirs, tolerance)
    assert all(value > 0 for value in ours[:2]) and any(g.any() for g in ours[4:7])


@pytest.mark.parametrize("strategy", ["frugal", "batched"])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_a_loss_with_a_transformers_margins_has_a_backward(kind, strategy, digits):
    net = make_net(TRANSFORMERS[kind], dtype=torch.float32)
    x, y = batch(net, digits)
    logits = net.train()(x)
    (F.cross_entropy(logits, y) + AMM(strategy=strategy)(net, x, y, logits=logits)).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "make, plain", [(AMM, 1), (lambda: Elsayed(), 1), (None, 0)], ids=["AMM", "Elsayed", "margins"]
)
def test_only_second_derivatives_take_plain_attention(make, plain, digits):
    net = make_net(Attention, dtype=torch.float32)
    x, y = batch(net, digits)
    net.fused.clear()
    margins(net, x, progress=False) if make is None else make()(net, x, y)
    assert net.fused.count(False) == plain < net.fused.count(True)
    assert torch.backends.cuda.flash_sdp_enabled()
