"""Other margin regularisers, called like AMM: what the paper compares with, and what a tighter margin would do."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ammlib.margin.amm import AMM, MarginRegulariser
from ammlib.margin.classifier import check_positive
from ammlib.margin.deepfool import margin
from ammlib.margin.gradients import gap_and_gradient
from ammlib.margin.parts import Shrinkage, all_of_them, unbounded
from ammlib.margin.tight import along_boundary
from ammlib.margin.trajectories import Walk, norm


@dataclass(frozen=True)
class Hinge:
    """R(t) = max(0, γ + t)"""

    gamma: float

    def __call__(self, t: Tensor) -> Tensor:
        return (self.gamma + t).clamp(min=0)


class Elsayed(MarginRegulariser):
    """Elsayed et al. (2018) as the paper implements it: one linear step, a hinge at `gamma`, ∇f held constant.

    The estimate needs no success of the attack, so every sample counts, fooled or not.
    """

    def __init__(self, lam: float = 1.0, gamma: float = 1.0, *, overshoot: float = 0.02, num_rivals: int = 10) -> None:
        check_positive(gamma=gamma)
        super().__init__(
            all_of_them,
            Shrinkage(Hinge(gamma), unbounded),
            lam,
            c=1.0,
            d=1.0,
            steps=1,
            overshoot=overshoot,
            num_rivals=num_rivals,
            high_order=False,
            needs_success=False,
        )
        self.name = "ELSAYED"


class Refined(AMM):
    """AMM on the tight margins of the kept, correct samples: an experiment of notebook 09, not of the paper."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, margin=refined_margin, **options)


def refined_margin(model: nn.Module, path: Walk, rows: Tensor, overshoot: float, high_order: bool) -> Tensor:
    """The tight margin of correctly classified samples, DeepFool's of the others, as a function of the weights.

    At the nearest point of the boundary the distance changes only as the boundary moves along its normal there, so
    that first-order gradients are enough.
    """
    far = path.course.targeted[rows]
    m_far, near = margin(model, path, rows[far], overshoot, high_order), rows[~far]
    if not len(near):
        return m_far
    x, y = path.x[near], path.course.goal[near]
    with torch.no_grad():
        delta, _ = along_boundary(model, x, y, path.delta[near], steps=10)
    gap, g = gap_and_gradient(model, x + delta, y, graph=True)
    m_near = norm(delta) - (gap - gap.detach()) / norm(g).detach()  # a larger gap moves the boundary towards x
    return m_near.new_zeros(len(rows)).masked_scatter(~far, m_near).masked_scatter(far, m_far)
