"""The AMM regulariser (eq. 5 and 6, section 3.3): which margins of a batch count, and for how much."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import (
    as_classes,
    check_attack,
    check_images,
    check_positive,
    check_values,
    choose,
    differs_in_eval_mode,
    frozen,
    unwrapped,
)
from ammlib.margin.deepfool import Walk, margin, walk
from ammlib.margin.gradients import View, look
from ammlib.margin.processes import Shares, world

TOP = 0.2  # MIN: a margin counts only if it is among this share of the batch (section 3.3.1)


def smallest_of_each_class(key: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """The rows that have the smallest key of their class and are among the smallest `TOP` of the batch."""
    rows = rows[key[rows].argsort(stable=True)][: max(1, int(TOP * len(y)))]
    same = y[rows].unsqueeze(1) == y[rows]  # (n, n)
    return rows[same.tril().sum(1) == 1]


# Which of the successfully attacked rows count; key is the margin, or its negative where the largest matter.
AGGREGATION = {"min": smallest_of_each_class, "avg": lambda key, y, rows: rows}

# λR(t) (section 3.3.2) of t = -cm or +dm, truncated so that EXP and INV never exceed `clip`.
SHRINKAGE = {
    "lin": lambda t, lam, clip: lam * t,
    "exp": lambda t, lam, clip: lam * t.clamp(max=math.log(clip / lam)).exp(),
    "inv": lambda t, lam, clip: lam / (1 - t.clamp(max=1 - lam / clip)),
}


@dataclass(frozen=True)
class Report:
    """What one call of the regulariser did, in numbers of samples."""

    correct: int
    misclassified: int
    attacked: int  # trajectories followed (all of them, unless screened)
    fooled: int  # of these, arrived on the other side of the boundary
    kept: int  # of these, counted
    margin: float  # mean over the kept and correctly classified; NaN if there are none


class AMM(nn.Module):
    """`loss = F.cross_entropy(logits, y) + amm(model, x, y, logits=logits)` trains for large margins.

    aggregation: "min", the smallest margin of each class, or "avg", all of them; shrinkage: "lin", "exp" or "inv".
    lam, c, d: the weight, and the slopes for correctly classified and for misclassified samples.
    steps, overshoot, num_rivals: of the attack, see `deepfool`. clip: the largest value of EXP and INV.
    relative: divide a margin by ‖x‖ (eq. 5, Deep Defense). high_order: let gradients flow through ∇f.
    screen: "auto" follows only the samples that can matter to "min"; None follows all of them.
    """

    def __init__(
        self,
        aggregation: str = "min",
        shrinkage: str = "exp",
        lam: float = 32.0,
        c: float = 2.0,
        d: float = 1.0,
        *,
        steps: int = 6,
        overshoot: float = 0.02,
        num_rivals: int = 10,
        clip: float = 50.0,
        relative: bool = False,
        high_order: bool = True,
        screen: str | None = "auto",
    ) -> None:
        super().__init__()
        self.aggregate = choose("aggregation", aggregation, AGGREGATION)
        self.shrink = choose("shrinkage", shrinkage, SHRINKAGE)
        check_positive(lam=lam, c=c, d=d, clip=clip)
        check_attack(steps, overshoot, num_rivals)
        if screen not in ("auto", None):
            raise ValueError(f"screen must be 'auto' or None, got {screen!r}")
        self.screened = screen == "auto" and aggregation == "min" and not relative
        self.lam, self.c, self.d, self.clip, self.relative, self.high_order = lam, c, d, clip, relative, high_order
        self.attack = dict(steps=steps, overshoot=overshoot, num_rivals=num_rivals)
        self.name = f"{aggregation}+{shrinkage}".upper()
        self.last: Report | None = None

    def extra_repr(self) -> str:
        return f"{self.name}, lam={self.lam}, c={self.c}, d={self.d}"

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, logits: Tensor | None = None) -> Tensor:
        """The regularisation term of a batch; `logits = model(x)`, where at hand, save screening a forward pass.

        Under DistributedDataParallel each process calls it with its share of the batch; the selection is over all.
        """
        model = unwrapped(model)
        check_images(x)
        shares = Shares(len(x))
        reuse = logits is not None and not differs_in_eval_mode(model)
        with frozen(model, x):
            with torch.no_grad():
                clean = View(x, as_classes(logits.detach())) if reuse else look(model, x, graph=not self.screened)
                y = check_values(x, clean.f, y)
                correct = clean.f.argmax(1) == y
                path = self.follow(model, clean, y, correct, shares)
                size = x.flatten(1).norm(dim=1) if self.relative else torch.ones_like(path.norm)  # eq. 5 or eq. 6
                success = path.success & (size > 0)  # relative to nothing, as of a black image, there is no margin
                everywhere = self.keep(*shares.gather(success, path.norm / size, y, correct))
                kept = shares.own(everywhere)
            m = self.margins(model, x, y, correct, path, kept) / size[kept]
        self.last = report(shares, path, correct, everywhere, kept, m)
        t = torch.where(correct[kept], -self.c * m, self.d * m)
        return self.shrink(t, self.lam, self.clip).sum() / (shares.total / world())

    def margins(self, model: nn.Module, x: Tensor, y: Tensor, correct: Tensor, path: Walk, kept: Tensor) -> Tensor:
        """‖Δ_x‖ of the kept samples as a function of the weights."""
        return margin(model, path, kept, self.attack["overshoot"], self.high_order)

    def keep(self, success: Tensor, m: Tensor, y: Tensor, correct: Tensor) -> Tensor:
        """The samples that count: those with the smallest margins or, where misclassified, the largest."""
        groups = ((m, correct & success), (-m, ~correct & success))
        return torch.cat([self.aggregate(key, y, mask.nonzero().squeeze(1)) for key, mask in groups])

    def follow(self, model: nn.Module, clean: View, y: Tensor, correct: Tensor, shares: Shares) -> Walk:
        """The trajectories of all samples or, screened, of those that can be among the smallest (largest)."""
        if not self.screened:
            return walk(model, clean, y, **self.attack)
        # A misclassified sample has one rival, its label, and any may end with the largest margin: all are followed.
        # For the correct ones the logit gap ranks the margins roughly, the first step of the attack nearly exactly.
        # In units of the gap that the smallest 20 % stay below, that step is taken from gaps up to 2, towards rivals
        # up to 1.75 (those within 15 % of a sample's nearest too, none four times as far); who is then within 10 % of
        # the smallest 20 % goes on. Tighter is faster, but low-dimensional data such as 8 x 8 digits need this much for
        # the promised 99.5 % of the exact selections and gradient cosine of 0.999.
        rank = max(16, int(TOP * shares.total))

        def threshold(size: Tensor) -> Tensor | float:
            size, counts = shares.gather(size, correct)
            return size[counts].kthvalue(rank).values if counts.sum() > rank else torch.inf

        first, second = clean.f.topk(2).values.unbind(1)
        gap = first - second
        unit = threshold(gap)
        followed = ~correct | (gap <= 2 * unit)
        far = torch.where(gap > 0, 4 * gap, torch.inf)  # of a tie all rivals are looked at
        limit = torch.where(correct, (1.15 * gap).clamp(min=1.75 * unit).clamp(max=far), torch.inf)

        def drop(norm: Tensor) -> Tensor:
            return correct & (norm > 1.1 * threshold(torch.where(followed, norm, torch.inf)))

        return walk(model, clean, y, followed.nonzero().squeeze(1), limit=limit, drop=drop, **self.attack)


def report(shares: Shares, path: Walk, correct: Tensor, everywhere: Tensor, kept: Tensor, m: Tensor) -> Report:
    """What happened to the whole batch, with rows `everywhere` kept, of which `kept`, with margins `m`, are here."""
    attacked, found = torch.zeros_like(correct), torch.zeros_like(path.norm)
    attacked[path.steps[0].rows] = True
    found[kept] = m.detach()
    attacked, success, correct, found = shares.gather(attacked, path.success, correct, found)
    return Report(
        correct=int(correct.sum()),
        misclassified=int((~correct).sum()),
        attacked=int(attacked.sum()),
        fooled=int(success.sum()),
        kept=len(everywhere),
        margin=float(found[everywhere][correct[everywhere]].mean()),
    )
