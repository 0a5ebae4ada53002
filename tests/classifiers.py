"""Classifiers for the tests, and all that the library finds about a batch."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from conftest import gradients, half_right
from torch import nn

from ammlib import AMM, Elsayed, deepfool, margins
from ammlib.data.vision import torchvision
from ammlib.margin.baselines import Refined
from ammlib.margin.tight import tight

REGULARISERS = {"min": AMM, "avg": lambda: AMM("avg"), "elsayed": Elsayed, "refined": Refined}


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))


def linear(classes, *last, scale=1.0, weight=None, bias=None):
    """A linear net whose weights and biases may be constants."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes), *last)
    with torch.no_grad():
        net[1].weight.mul_(scale) if weight is None else net[1].weight.fill_(weight)
        if bias is not None:
            net[1].bias.fill_(bias)
    return net


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))


# what `net` takes
X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 5


class Attention(nn.Module):
    """Pixel rows attend to each other; it remembers whether another kernel than the plain one was allowed."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head, self.fused = nn.Linear(8, 24), nn.Linear(64, 10), []

    def forward(self, x):
        self.fused.append(torch.backends.cuda.flash_sdp_enabled())
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v).flatten(1))


def vit():
    """torchvision's, whose head is zero at first."""
    sizes = dict(image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10)
    net = nn.Sequential(nn.Conv2d(1, 3, 1), torchvision.models.VisionTransformer(**sizes))
    nn.init.normal_(net[1].heads.head.weight)
    return net


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64, 10))


TRANSFORMERS = {"torchvision": vit, "nn.TransformerEncoder": encoder, "functional": Attention}


def batch(net, digits, n=20, dtype=torch.float32):
    """Images, and labels half of which are right."""
    x = digits[0][:n].to(dtype)
    return x, half_right(net.eval(), x)


def numbers(net, x, y, logits=None, inside=nullcontext):
    """All that the library finds about a batch: the regularisers with their gradients, and the norms."""
    with inside():
        values = [make()(net, x, y, logits=logits) for make in REGULARISERS.values()]
        norms = [deepfool(net, x).norm, deepfool(net, x, y).norm, tight(net, x, steps=5).norm]
        norms.append(margins(net, (x, y), progress=False).norm)
    return [*values, *(g for value in values for g in gradients(value, net)), *norms]
