"""Facts about batch norm as an affine map: the numbers of PyTorch's in eval mode, and where it is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ammlib import AMM, margins
from ammlib.margin import gradients, second
from ammlib.margin.second import twice_differentiable


def norm_layer(layer, **options):
    """In eval mode, with statistics and weights of no special value."""
    made = layer(3, **options).double().eval()
    for tensor in made.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return made


def derivatives(layer, x):
    """Values, first derivatives and those of the length of the first."""
    x = x.clone().requires_grad_()
    value = layer(x).sin()
    wanted = [x, *layer.parameters()]
    (g,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    return [value, g, *torch.autograd.grad(value.sum() + g.square().sum(), wanted)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    "layer, shape", [(nn.BatchNorm1d, (5, 3)), (nn.BatchNorm1d, (5, 3, 4)), (nn.BatchNorm2d, (5, 3, 4, 2))]
)
def test_it_has_the_numbers_of_batch_norm_and_its_two_derivatives(layer, shape, affine):
    made, x = norm_layer(layer, affine=affine), torch.randn(shape, dtype=torch.float64)
    theirs = derivatives(made, x)
    with twice_differentiable():
        ours = derivatives(made, x)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_statistics_of_the_batch_are_left_to_pytorch():
    layer, x = nn.BatchNorm1d(3, track_running_stats=False).eval(), torch.randn(5, 3)
    theirs = layer(x)
    with twice_differentiable():
        assert torch.equal(layer(x), theirs) and torch.equal(layer.train()(x), theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_may_have_a_precision_of_their_own(dtype):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    net[1].float()
    AMM()(net, torch.randn(20, 6, dtype=dtype), torch.arange(20) % 3).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


class Checkpointed(nn.Module):
    """A net with a part that is computed again during backward."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(checkpoint(self.part, x, use_reentrant=False))


@pytest.mark.parametrize("mode", [True, False])
def test_what_is_computed_again_in_another_mode_is_refused(mode):
    net, x, y = Checkpointed().train(mode), torch.randn(20, 6), torch.arange(20) % 3
    margins(net, x, progress=False)
    with pytest.raises(RuntimeError, match="switch off gradient checkpointing inside the model"):
        AMM()(net, x, y)
    assert net.training is mode


def test_only_the_points_of_the_kept_samples_are_looked_at_so(monkeypatch):
    calls, looks = [], []
    monkeypatch.setattr(
        second, "batch_norm", lambda *args, **options: calls.append(1) or F.batch_norm(*args, **options)
    )
    look = gradients.look
    monkeypatch.setattr(gradients, "look", lambda *args, **options: looks.append(1) or look(*args, **options))
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    AMM()(net, torch.randn(20, 6), torch.arange(20) % 3)
    assert len(calls) == 1 < len(looks)
