"""Other margin regularisers, called like AMM: what the paper compares with, and what a tighter margin would do."""

import torch
from torch import Tensor, nn

from ammlib.margin.amm import AMM
from ammlib.margin.classifier import check_positive
from ammlib.margin.deepfool import Walk
from ammlib.margin.gradients import gap_and_gradient
from ammlib.margin.tight import along_boundary, norm


class Elsayed(AMM):
    """Elsayed et al. (2018) as the paper implements it: one linear step, a hinge at `gamma`, ∇f held constant.

    The estimate needs no success of the attack, so every sample counts, fooled or not.
    """

    def __init__(self, lam: float = 1.0, gamma: float = 1.0, *, overshoot: float = 0.02, num_rivals: int = 10) -> None:
        check_positive(gamma=gamma)
        options = {"steps": 1, "overshoot": overshoot, "num_rivals": num_rivals, "high_order": False}
        super().__init__("avg", "lin", lam, c=1.0, d=1.0, **options)
        self.name = "ELSAYED"
        self.gamma = gamma
        self.shrink = lambda t, lam, clip: lam * (self.gamma + t).clamp(min=0)

    def keep(self, success: Tensor, m: Tensor, y: Tensor, correct: Tensor) -> Tensor:
        return m.nonzero().squeeze(1)  # a zero margin has no direction to grow in


class Refined(AMM):
    """AMM on the tight margins of the kept, correct samples: an experiment of notebook 09, not of the paper.

    At the nearest point of the boundary the distance changes only as the boundary moves along its normal there, so
    that first-order gradients are enough.
    """

    def margins(self, model: nn.Module, x: Tensor, y: Tensor, correct: Tensor, path: Walk, kept: Tensor) -> Tensor:
        near = correct[kept]
        m = super().margins(model, x, y, correct, path, kept[~near])
        if not near.any():
            return m
        x, y = x[kept[near]].detach(), y[kept[near]]
        with torch.no_grad():
            delta, _ = along_boundary(model, x, y, path.delta[kept[near]], steps=10)
        gap, g = gap_and_gradient(model, x + delta, y, graph=True)
        m_near = norm(delta) - (gap - gap.detach()) / norm(g).detach()  # a larger gap moves the boundary towards x
        return m.new_zeros(len(kept)).masked_scatter(near, m_near).masked_scatter(~near, m)
