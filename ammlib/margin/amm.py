"""The AMM regulariser (section 3.3): the margins of a batch, and how much they count."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import check_attack, check_images, check_values, choose, frozen, why_not_fooled
from ammlib.margin.deepfool import margin, walk
from ammlib.margin.gradients import known_view, look, strategy_for
from ammlib.margin.parts import AGGREGATION, SHRINKAGE, Report, Shrinkage, check_strength
from ammlib.margin.processes import Shares, world
from ammlib.margin.screening import everything, promising
from ammlib.margin.trajectories import Course, norm


class MarginRegulariser(nn.Module):
    """A term that rewards large margins of correctly classified samples and small ones of misclassified samples.

    It has four parts that can be exchanged: which samples to `follow` (screening.py), which of these to `keep`, the
    `shrinkage` R of their margins (parts.py), and the `margin` itself as a function of the weights (deepfool.py).
    """

    def __init__(
        self,
        keep: Callable[[Tensor, Tensor], Tensor],
        shrinkage: Shrinkage,
        lam: float,
        c: float,
        d: float,
        *,
        follow: Callable[..., Any] = everything,
        margin: Callable[..., Tensor] = margin,
        steps: int = 6,
        overshoot: float = 0.02,
        num_rivals: int = 10,
        clip: float = 50.0,
        relative: bool = False,
        high_order: bool = True,
        needs_success: bool = True,
        strategy: str = "auto",
    ) -> None:
        super().__init__()
        check_strength(shrinkage, lam, c, d, clip)
        check_attack(steps, overshoot, num_rivals)
        strategy_for(strategy, torch.device("cpu"))
        self.keep, self.shrinkage, self.follow, self.margin = keep, shrinkage, follow, margin
        self.lam, self.c, self.d, self.clip = lam, c, d, clip
        self.steps, self.overshoot, self.num_rivals, self.strategy = steps, overshoot, num_rivals, strategy
        self.relative, self.high_order, self.needs_success = relative, high_order, needs_success
        self.name, self.warned = type(self).__name__, False
        self.columns: tuple[Tensor, ...] | None = None  # of the last call, for its report

    def extra_repr(self) -> str:
        return f"{self.name}, lam={self.lam}, c={self.c}, d={self.d}"

    @property
    def last(self) -> Report | None:
        """What the last call did; counted when it is asked for, since a GPU has to be waited for."""
        return None if self.columns is None else Report.of(*self.columns)

    @torch._disable_dynamo
    def forward(self, model: nn.Module, x: Tensor, y: Tensor, logits: Tensor | None = None) -> Tensor:
        """The term of a batch, to be minimised beside the loss and the weight decay (eq. 7).

        `logits = model(x)`, where at hand, save screening a forward pass. Of several processes each gives its share.
        """
        check_images(x)
        how = strategy_for(self.strategy, x.device, x[:1].numel())
        shares = Shares(len(x), x.device)  # All processes meet here.
        known = known_view(model, x, logits)
        with frozen(model, x) as model:
            with torch.no_grad():
                clean = known or look(model, x, graph=self.follow is not promising)
                y = check_values(x, clean.f.detach(), y)
                course = Course.of(clean, y, self.num_rivals)
                followed, first = self.follow(model, clean, course, y, shares, how)  # They may meet in there.
                path = walk(model, clean, course, how, followed, first, steps=self.steps, overshoot=self.overshoot)
                size = norm(x) if self.relative else torch.ones_like(path.norm)  # eq. 5 divides by ‖x‖
                usable = (path.success if self.needs_success else path.norm > 0) & (size > 0)
                # And here: what counts is decided over the batch of all of them.
                m, usable, labels, correct = shares.gather(path.norm / size, usable, y, ~course.targeted)
                smallest = torch.where(usable & correct, m, torch.inf)  # of 𝒯
                largest = torch.where(usable & ~correct, -m, torch.inf)  # of ℱ
                kept = self.keep(torch.stack([smallest, largest]), labels).any(0)
                mine = shares.own(kept).nonzero().squeeze(1)
            m = self.margin(model, path, mine, self.overshoot, self.high_order) / size[mine]
            found = torch.zeros_like(path.norm).index_copy_(0, mine, m.detach())
            followed, success, found = shares.gather(path.followed, path.success, found)  # And here.
            self.columns = (correct, followed, success, kept, found)
        if len(x) and not len(mine) and not self.warned and not self.columns[2].any():  # in no process
            self.warned = True
            warnings.warn(f"no sample was fooled, so that the term is zero; {why_not_fooled(clean.f)}", stacklevel=6)
        t = torch.where(course.targeted[mine], self.d * m, -self.c * m)
        return self.shrinkage.term(t, self.lam, self.clip).sum() / (shares.total / world())  # eq. 6


class AMM(MarginRegulariser):
    """`loss = F.cross_entropy(logits, y) + amm(model, x, y, logits=logits)` trains for large margins.

    aggregation: "min", the smallest margin of each class, or "avg", all of them; shrinkage: "lin", "exp" or "inv".
    lam, c, d: the weight, and the slopes for correctly classified and for misclassified samples.
    screen: "auto" follows only the samples that can matter to "min"; None follows all of them.
    options: steps, overshoot, num_rivals, strategy, as of `deepfool`; clip, the largest value of EXP and INV; relative,
    to divide a margin by ‖x‖ (Deep Defense); high_order, to let gradients flow through ∇f.
    """

    def __init__(
        self,
        aggregation: str = "min",
        shrinkage: str = "exp",
        lam: float = 32.0,
        c: float = 2.0,
        d: float = 1.0,
        *,
        screen: str | None = "auto",
        **options: Any,
    ) -> None:
        keep, shrink = choose("aggregation", aggregation, AGGREGATION), choose("shrinkage", shrinkage, SHRINKAGE)
        if screen not in ("auto", None):
            raise ValueError(f"screen must be 'auto' or None, got {screen!r}")
        screened = screen == "auto" and aggregation == "min" and not options.get("relative")
        super().__init__(keep, shrink, lam, c, d, follow=promising if screened else everything, **options)
        self.name = f"{aggregation}+{shrinkage}".upper()
