"""Projected gradient ascent: is there a misclassified point within a given l2 distance of a sample?"""

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import check_images, check_positive, class_logits, frozen
from ammlib.margin.gradients import gap_and_gradient
from ammlib.margin.trajectories import expand, norm


def pgd(model: nn.Module, x: Tensor, y: Tensor, radius: float, *, steps: int = 40) -> Tensor:
    """Points (B, ...) within `radius` of x where the logit of the label `y` is as far behind another as was found.

    Starts at x; each step has the length 2.5 `radius` / `steps` along the gradient; there is no pixel box. A sample
    stays where it is misclassified first.
    """
    check_positive(radius=radius, steps=steps)
    check_images(x)
    x = x.detach()
    delta = torch.zeros_like(x)
    with frozen(model, x) as model, torch.no_grad():
        for _ in range(steps):
            gap, g = gap_and_gradient(model, x + delta, y)
            step = 2.5 * radius / steps * g / expand(norm(g).clamp(min=1e-30), x)
            delta = torch.where(expand(gap <= 0, x), within(radius, delta + step), delta)
        return x + delta


def robust(model: nn.Module, x: Tensor, y: Tensor, radius: float, *, steps: int = 40) -> Tensor:
    """Which samples (B,) are classified correctly also at the point that `pgd` finds."""
    there = pgd(model, x, y, radius, steps=steps)
    with frozen(model, x) as model, torch.no_grad():
        return (class_logits(model, x).argmax(1) == y) & (class_logits(model, there).argmax(1) == y)


def within(radius: float, delta: Tensor) -> Tensor:
    """Perturbations no longer than `radius`: longer ones are scaled down."""
    return delta * expand((radius / norm(delta)).clamp(max=1), delta)
