"""The other margin regularisers that the paper compares with, called like AMM."""

from torch import Tensor

from ammlib.amm import AMM
from ammlib.classifier import check_positive


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
