"""Noise on labels and on weights: DisturbLabel (Xie et al. 2016) and DropConnect (Wan et al. 2013)."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ammlib.margin.classifier import choose
from ammlib.methods.layers import replace_layer
from ammlib.methods.method import Batch, Method, Task, of_batch


class DisturbLabel(Method):
    """In each step, a share `alpha` of the labels is drawn anew from all classes, so that some stay true."""

    def __init__(self, alpha: float = 0.2) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be in 0 ... 1, got {alpha}")
        self.alpha, self.classes = alpha, 0

    def begin(self, model: nn.Module, task: Task) -> None:
        self.classes = task.classes

    def disturb(self, batch: Batch) -> Batch:
        return batch._replace(y=disturbed(batch.y, self.alpha, self.classes))


def disturbed(y: Tensor, alpha: float, classes: int) -> Tensor:
    """Labels of which P(true) = 1 - α (C - 1)/C, and P(k) = α/C of each other class."""
    drawn = of_batch(y, lambda n: torch.rand(n, 2, device=y.device))
    return torch.where(drawn[:, 0] < alpha, (drawn[:, 1] * classes).long(), y)


class DropConnect(Method):
    """Each weight and bias of the hidden, rectified linear layers is kept with probability `keep`, for each sample.

    mask: "gaussian" draws Wv from the normal distribution that many masks lead to, "sample" a mask for each sample,
    which takes B times the memory of the weights, and "batch" one for all samples.
    """

    def __init__(self, keep: float = 0.5, mask: str = "gaussian") -> None:
        super().__init__()
        if not 0 < keep <= 1:
            raise ValueError(f"keep must be above 0, and 1 at most, got {keep}")
        choose("mask", mask, MASKS)
        self.keep, self.mask = keep, mask

    def adapt(self, model: nn.Module) -> nn.Module:
        found = [
            first
            for module in model.modules()
            if isinstance(module, nn.Sequential)
            for first, second in pairwise(module)
            if isinstance(first, nn.Linear) and isinstance(second, nn.ReLU)
        ]
        if not found:
            raise ValueError("dropconnect masks linear layers that are followed by a ReLU; this model has none")
        for layer in found:
            model = replace_layer(model, layer, MaskedLinear(layer, self.keep, self.mask))
        return model


class MaskedLinear(nn.Module):
    """relu((M ∘ W) v) of a linear layer; M is random in training and averaged over in eval mode."""

    def __init__(self, layer: nn.Linear, keep: float, mask: str = "gaussian") -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.keep, self.mask = keep, mask

    def forward(self, v: Tensor) -> Tensor:
        if self.keep == 1:
            return F.relu(F.linear(v, self.weight, self.bias))
        if self.training:
            return F.relu(MASKS[self.mask](self, v))
        mu, s = self.moments(v)
        z = mu / s
        phi = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return mu * torch.special.ndtr(z) + s * phi  # E[relu(u)] of u ~ N(μ, s²)

    def moments(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of Wv + b over the masks: p (Wv + b) and √(p (1 - p) ((W∘W)(v∘v) + b∘b))."""
        bias = None if self.bias is None else self.bias**2
        square = F.linear(v**2, self.weight**2, bias) + 1e-12  # √ has no derivative at 0
        return self.keep * F.linear(v, self.weight, self.bias), (self.keep * (1 - self.keep) * square).sqrt()

    def gaussian(self, v: Tensor) -> Tensor:
        mu, s = self.moments(v)
        return mu + s * of_batch(v, lambda n: torch.randn(n, mu.shape[1], device=v.device)).to(v)

    def masked(self, v: Tensor, drawn: Tensor) -> Tensor:
        """With the mask of each sample, or one for all, from uniform numbers (masks, outputs, inputs + 1)."""
        kept = (drawn < self.keep).to(v)  # the last input is that of the bias
        u = ((kept[..., :-1] * self.weight) @ v.unsqueeze(2)).squeeze(2)
        return u if self.bias is None else u + kept[..., -1] * self.bias

    def draw(self, masks: int) -> Tensor:
        outputs, inputs = self.weight.shape
        return torch.rand(masks, outputs, inputs + 1, device=self.weight.device)

    def by_sample(self, v: Tensor) -> Tensor:
        return self.masked(v, of_batch(v, self.draw))

    def by_batch(self, v: Tensor) -> Tensor:
        return self.masked(v, self.draw(1))


MASKS = {"gaussian": MaskedLinear.gaussian, "sample": MaskedLinear.by_sample, "batch": MaskedLinear.by_batch}
