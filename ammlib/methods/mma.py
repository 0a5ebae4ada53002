"""MMA (Ding et al. 2018): adversarial training at the distance where each sample is just about misclassified."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ammlib.margin.classifier import check_positive, frozen, unwrapped
from ammlib.margin.processes import world
from ammlib.methods.losses import cross_entropy
from ammlib.methods.method import Batch, Method, Task

LEAST = 0.5  # radius of an attack, otherwise it is the margin found last
MORE = 1.05  # times d_max is looked for the boundary
BISECTIONS = 10


class MMA(Method):
    """Of the correct samples those nearer than `d_max` to the boundary are trained on at the boundary, not at x.

    steps: of the attack, 40 in the paper; clean: the weight of the plain loss of all samples. The margin last found for
    each sample is the state.
    """

    margins: Tensor

    def __init__(self, d_max: float = 4.0, steps: int = 10, clean: float = 1 / 3) -> None:
        super().__init__()
        check_positive(d_max=d_max, steps=steps)
        if not 0 <= clean <= 1:
            raise ValueError(f"clean must be in 0 ... 1, got {clean}")
        self.d_max, self.steps, self.clean = d_max, steps, clean

    def begin(self, model: nn.Module, task: Task) -> None:
        if world() > 1:
            raise ValueError("mma trains in one process: the margins that it keeps of all samples are not shared")
        weight = next(model.parameters())
        self.register_buffer("margins", torch.zeros(task.samples, device=weight.device))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        x, y, logits = batch.x, batch.y, model(batch.x)
        plain = cross_entropy(logits, y)
        if self.clean == 1 or not logits.isfinite().all():
            return plain, logits
        correct = gap(logits.detach(), y) < 0
        delta, margin = torch.zeros_like(x), x.new_zeros(len(x))
        delta[correct], margin[correct] = self.attack(unwrapped(model), batch, correct)
        counted = ~correct | (margin < self.d_max)
        near = F.cross_entropy(model(x + delta), y, reduction="none")  # of x itself where it is misclassified
        return (1 - self.clean) * (near * counted).sum() / len(x) + self.clean * plain, logits

    def attack(self, model: nn.Module, batch: Batch, correct: Tensor) -> tuple[Tensor, Tensor]:
        """Steps to the boundary and their length, of the correct samples, which are remembered."""
        x, y = batch.x[correct], batch.y[correct]
        rows = None if batch.rows is None else batch.rows[correct.to(batch.rows.device)]
        last = x.new_zeros(len(x)) if rows is None else self.margins[rows].to(x)
        radius, begin = last.clamp(LEAST, MORE * self.d_max), unit(torch.randn_like(x))
        with frozen(model, x):
            direction = pgd(model, x, y, radius, begin, self.steps)
            margin = bisected(model, x, y, direction, MORE * self.d_max)
        if rows is not None:
            self.margins[rows] = margin.to(self.margins)
        return moved(x, direction, margin) - x, margin


def gap(f: Tensor, y: Tensor) -> Tensor:
    """log Σ_{j≠y} exp f_j - f_y, above 0 only if y is not the most probable class."""
    label = y.unsqueeze(1)
    return f.scatter(1, label, -torch.inf).logsumexp(1) - f.gather(1, label).squeeze(1)


def moved(x: Tensor, direction: Tensor, length: Tensor) -> Tensor:
    """The image at a distance in a direction, in the box [0, 1]."""
    return (x + each(length, x) * direction).clamp(0, 1)


def each(values: Tensor, x: Tensor) -> Tensor:
    """A number for each sample (B,), to multiply images with."""
    return values.view(-1, *[1] * (x.ndim - 1))


def unit(delta: Tensor) -> Tensor:
    return delta / each(delta.flatten(1).norm(dim=1).clamp(min=1e-12), delta)


def pgd(model: nn.Module, x: Tensor, y: Tensor, radius: Tensor, begin: Tensor, steps: int) -> Tensor:
    """The unit direction in which projected gradient ascent on the gap ends, which stays within a radius for each
    sample and begins in a direction half as far."""
    delta = begin * each(radius / 2, x)
    for _ in range(steps):
        point = (x + delta).clamp(0, 1).requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(gap(model(point), y).sum(), point)
        delta = point.detach() + each(2.5 * radius / steps, x) * unit(g) - x
        delta = unit(delta) * each(torch.minimum(delta.flatten(1).norm(dim=1), radius), x)
    return unit((x + delta).clamp(0, 1) - x)


@torch.no_grad()
def bisected(model: nn.Module, x: Tensor, y: Tensor, direction: Tensor, most: float) -> Tensor:
    """The distance (B,) at which the label stops winning in a direction; `most` if it is farther."""
    low, high = torch.zeros(len(x)).to(x), torch.full((len(x),), most).to(x)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fooled = gap(model(moved(x, direction, middle)), y) >= 0
        low, high = torch.where(fooled, low, middle), torch.where(fooled, middle, high)
    return high
