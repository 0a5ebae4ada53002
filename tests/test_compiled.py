"""Facts about compiled models: they have the numbers of the original, and go on compiled."""

import copy

import pytest
import torch
import torch.nn.functional as F
from classifiers import batch, mlp, numbers
from conftest import assert_same, make_net
from torch import nn

from ammlib import AMM


class Own(nn.Module):
    """Of a class that is not torch's: `compile` of nn.Sequential itself compiles nothing."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)


def compiled_in_place(net, **options):
    net.compile(**options)
    return net


def compiled_in_part(net, **options):
    net.net[1] = torch.compile(net.net[1], **options)
    return net


COMPILED = {"torch.compile": torch.compile, "model.compile": compiled_in_place, "in part": compiled_in_part}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("form", COMPILED)
def test_a_compiled_model_has_the_numbers_of_the_original(form, backend, digits):
    torch.compiler.reset()
    net = make_net(Own, dtype=torch.float32)
    x, y = batch(net, digits)
    compiled = COMPILED[form](copy.deepcopy(net), backend=backend)
    logits = compiled(x)
    assert_same(numbers(compiled, x, y), numbers(net, x, y), 1e-5)
    assert_same(numbers(compiled, x, y, logits), numbers(net, x, y), 1e-5)
    (F.cross_entropy(logits, y) + AMM()(compiled, x, y, logits=logits)).backward()
    assert all(p.grad.any() for p in compiled.parameters())


@pytest.mark.parametrize("form", COMPILED)
def test_compiled_code_rests_during_the_attack_and_goes_on_afterwards(form, digits):
    torch.compiler.reset()
    ran = []

    def backend(graph, _):
        return lambda *args: ran.append(1) or graph(*args)

    net = make_net(Own, dtype=torch.float32)
    x, y = batch(net, digits)
    compiled = COMPILED[form](net, backend=backend)
    compiled(x)
    once = len(ran)
    numbers(compiled, x, y)
    assert len(ran) == once > 0
    compiled(x)
    assert len(ran) == 2 * once


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_objective_of_a_step_may_be_compiled_as_a_whole(backend, digits):
    torch.compiler.reset()
    net, amm = make_net(Own, dtype=torch.float32), AMM()
    x, y = batch(net, digits)

    def objective():
        logits = net(x)
        return F.cross_entropy(logits, y) + amm(net, x, y, logits=logits)

    expected = torch.autograd.grad(objective(), list(net.parameters()))
    found = torch.autograd.grad(torch.compile(objective, backend=backend)(), list(net.parameters()))
    assert_same(found, expected, 1e-5)
