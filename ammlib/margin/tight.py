"""The margin, tighter than DeepFool's: from DeepFool's point along the decision boundary to the nearest one.

At a point x + δ of the boundary with unit normal n the nearest boundary point, if the boundary were flat, would have
the perturbation ⟨δ, n⟩ n. A step goes a part of the way there, and back to the boundary along n. Nets of ReLUs have a
different normal in every little piece: parts that become smaller, and a running mean of the normals, even that out.
"""

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import check_positive, class_logits, frozen
from ammlib.margin.deepfool import deepfool
from ammlib.margin.gradients import gap_and_gradient, gap_to
from ammlib.margin.trajectories import AttackResult, dot, expand, norm

PART = (1.0, 0.1)  # of the way, in the first and in the last step
MEMORY = 0.7  # of the running mean
OVERSHOOT = 0.005  # at first, as a share of the norm; larger after a step that did not get across, smaller after others
SHORTER, LONGER = 0.7, 1.5


def tight(model: nn.Module, x: Tensor, *, steps: int = 20) -> AttackResult:
    """Attack a batch as `deepfool` does, then take `steps` steps along the boundary towards x.

    Takes some four times as long. No norm is larger than that of a successful DeepFool.
    """
    check_positive(steps=steps)
    start = deepfool(model, x)
    x = x.detach()
    with frozen(model, x) as model, torch.no_grad():
        delta, found = along_boundary(model, x, start.prediction, start.delta, steps)
        delta = onto_boundary(model, x, delta, start.prediction, found)
        longer = start.success & (norm(delta) > start.norm)  # in half precision, where a changed class may be a tie
        delta = torch.where(expand(longer, x), start.delta, delta)
        f = class_logits(model, x + delta)
        success = (f.argmax(1) != start.prediction) & f.isfinite().all(1)
    return AttackResult(delta, norm(delta), success, start.steps + steps, start.prediction)


def along_boundary(model: nn.Module, x: Tensor, prediction: Tensor, delta: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The shortest perturbation seen on a walk from `delta` that changes the prediction; and where there is one."""
    nearest, least = delta, torch.full_like(norm(delta), torch.inf)
    mean, overshoot = torch.zeros_like(x), torch.full_like(least, OVERSHOOT)
    first, last = torch.tensor(PART, device="cpu").log10()
    for part in torch.logspace(first, last, steps, device="cpu").tolist():
        gap, g = gap_and_gradient(model, x + delta, prediction)
        across, length = gap > 0, norm(delta)
        closer = across & (length < least)
        nearest, least = torch.where(expand(closer, x), delta, nearest), torch.where(closer, length, least)
        overshoot = torch.where(across, SHORTER * overshoot, LONGER * overshoot)

        size = norm(g)
        normal = (g / expand(size, x)).nan_to_num(0)
        mean = MEMORY * mean + (1 - MEMORY) * normal
        smooth = mean / expand(norm(mean), x)
        aside = delta - expand(dot(delta, smooth), x) * smooth  # what of δ leads along the boundary
        aside = part * aside * expand(least.isfinite(), x)  # which must be reached first
        back = (dot(g, aside) - gap) / size + overshoot * length
        moved = delta - aside + expand(back, x) * normal
        delta = torch.where(expand(norm(moved).isfinite(), x), moved, delta)  # without a gradient: stay
    return nearest, least.isfinite()


def onto_boundary(model: nn.Module, x: Tensor, delta: Tensor, prediction: Tensor, found: Tensor) -> Tensor:
    """Shorten the perturbations that were `found` until they hardly change the prediction (regula falsi, Illinois)."""

    def gap_at(part: Tensor) -> Tensor:
        return gap_to(class_logits(model, x + expand(part, x) * delta), prediction)

    below, beyond = torch.zeros_like(found, dtype=x.dtype), torch.ones_like(found, dtype=x.dtype)
    gap_below, gap_beyond = gap_at(below), gap_at(beyond)
    slack = 1 + torch.finfo(x.dtype).eps ** 0.75  # so that rounding does not take the point back to this side
    for _ in range(5):
        part = beyond - gap_beyond * (beyond - below) / (gap_beyond - gap_below)
        part = torch.minimum(part * slack, beyond)
        gap = gap_at(part)
        across = found & (gap > 0)
        short = found & (gap <= 0)
        # An end that stays counts half the next time, or it might stay for ever.
        gap_below = torch.where(short, gap, torch.where(across, gap_below / 2, gap_below))
        gap_beyond = torch.where(across, gap, torch.where(short, gap_beyond / 2, gap_beyond))
        below, beyond = torch.where(short, part, below), torch.where(across, part, beyond)
    return expand(beyond, x) * delta
