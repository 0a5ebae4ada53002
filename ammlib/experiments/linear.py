"""Sections 3.2 and 3.3 in the plane: AMM on f(x) = w·x + b, where every answer has a closed form to hold it against.

Samples are rows of x, float64; labels are 0 (negative) and 1 (positive).
"""

import math

import torch
from sklearn.svm import SVC
from torch import Tensor, nn

from ammlib.margin.amm import AMM


def two_classes(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """`samples` points a class around ±(2.2, 0.7), Gaussian but for |x₁| > 1: the line x₁ = 0 separates them."""
    random = torch.Generator().manual_seed(seed)
    y = torch.tensor([0, 1]).repeat_interleave(samples)
    x = torch.empty(2, 2 * samples, dtype=torch.float64)
    nn.init.trunc_normal_(x[0], mean=2.2, std=0.7, a=1, b=10, generator=random)
    x[1].normal_(mean=0.7, std=1.5, generator=random)
    x *= sign(y)
    return x.T.contiguous(), y


def move_deepest(x: Tensor, y: Tensor, model: nn.Linear, distance: float) -> tuple[Tensor, Tensor]:
    """A copy of x in which the positive sample deepest in its class has moved along the boundary; and its index."""
    w = direction(model)
    index = (signed_margin(model, x, y) * y).argmax()
    x = x.clone()
    x[index] += distance * torch.stack([-w[1], w[0]])
    return x, index


def affine(w: Tensor, b: float) -> nn.Linear:
    """f(x) = w·x + b with w scaled to length 1."""
    model = nn.Linear(len(w), 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(w / w.norm())
        model.bias.fill_(b)
    return model


def random_direction(seed: int) -> Tensor:
    """A vector of the plane, any direction as likely."""
    return torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def train_linear(amm: AMM, x: Tensor, y: Tensor, start: nn.Linear, steps: int = 120, rate: float = 0.1) -> nn.Linear:
    """Minimise AMM alone, all samples in each batch, by projected subgradient descent from a copy of `start`.

    A step of (w, b) has length `rate`, falling quadratically to 0: at the corners of MIN the gradient never vanishes.
    The projection is the paper's constraint ‖w‖ = 1.
    """
    model = affine(direction(start), start.bias.item())
    for i in range(steps):
        g = torch.autograd.grad(amm(model, x, y), [model.weight, model.bias])
        step = rate * (1 - i / steps) ** 2 / torch.cat([part.flatten() for part in g]).norm().clamp(min=1e-300)
        with torch.no_grad():
            model.weight.sub_(step * g[0])
            model.bias.sub_(step * g[1])
            model.weight.div_(model.weight.norm())
    return model


def closed_form(x: Tensor, y: Tensor) -> Tensor:
    """w* of AVG+LIN: the sum of the positives minus that of the negatives, scaled to length 1."""
    w = sign(y) @ x
    return w / w.norm()


def hard_margin_svm(x: Tensor, y: Tensor) -> tuple[nn.Linear, Tensor]:
    """scikit-learn's, with ‖w‖ = 1, and the indices of its support vectors."""
    svc = SVC(kernel="linear", C=1e10, tol=1e-6).fit(x.numpy(), y.numpy())
    w = torch.tensor(svc.coef_[0])
    return affine(w, svc.intercept_[0] / float(w.norm())), torch.tensor(svc.support_).long()


def sign(y: Tensor) -> Tensor:
    """Labels 0 and 1 as -1 and +1."""
    return 2.0 * y.double() - 1


def direction(model: nn.Linear) -> Tensor:
    """w/‖w‖, the normal of the boundary."""
    w = model.weight.detach()[0]
    return w / w.norm()


def angle(a: nn.Linear | Tensor, b: nn.Linear | Tensor) -> float:
    """Between two vectors, or the normals of two boundaries, in degrees from 0 to 180."""
    u, v = (direction(m) if isinstance(m, nn.Linear) else m / m.norm() for m in (a, b))
    return math.degrees(2 * math.atan2(float((u - v).norm()), float((u + v).norm())))


def signed_margin(model: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """Distance to the boundary, negative where misclassified, shape (B,)."""
    with torch.no_grad():
        return sign(y) * model(x).squeeze(1) / model.weight.norm()


def smallest_margin(model: nn.Linear, x: Tensor, y: Tensor) -> float:
    """γ, the distance of the nearest sample; negative if one is misclassified."""
    return float(signed_margin(model, x, y).min())


def half_width(model: nn.Linear, x: Tensor, y: Tensor) -> float:
    """Half the empty strip between the classes across the boundary: the smallest margin that another b could give."""
    m = signed_margin(model, x, y)
    return float(m[y == 0].min() + m[y == 1].min()) / 2


def margin_in_sides(model: nn.Linear, x: Tensor, y: Tensor) -> float:
    """The smallest margin in units of the side of the smallest square around the samples."""
    return smallest_margin(model, x, y) / float((x.amax(0) - x.amin(0)).max())


def weight_of_margin(amm: AMM, m: Tensor) -> Tensor:
    """|∂R/∂m| at signed margins m: what a sample there counts for."""
    m = m.detach().requires_grad_()
    value = amm.shrinkage.term(torch.where(m > 0, -amm.c * m, -amm.d * m), amm.lam, amm.clip)
    return torch.autograd.grad(value.sum(), m)[0].abs()


def covering_number(epsilon: float, m: int) -> int:
    """Balls of radius ε that suffice for [0, 1]^m: one around each of k^m cubes whose half diagonal is √m/2k ≤ ε."""
    return math.ceil(math.sqrt(m) / (2 * epsilon)) ** m


def log10_balls_needed(epsilon: float, m: int) -> float:
    """log₁₀ of a lower bound of the covering number of [0, 1]^m: its volume in balls of radius ε."""
    return (math.lgamma(m / 2 + 1) - m / 2 * math.log(math.pi) - m * math.log(epsilon)) / math.log(10)


def generalisation_bound(gamma: float, n: int, m: int = 2, delta: float = 0.05) -> float:
    """Theorem 3.2 with K of Theorem 3.1, for inputs from [0, 1]^m, margins above γ and the 0/1 loss (M = 1, ε = 0)."""
    if gamma <= 0:  # a sample is misclassified: the theorem says nothing
        return math.inf
    k = 2 * covering_number(gamma / 2, m)
    return math.sqrt((2 * k * math.log(2) + 2 * math.log(1 / delta)) / n)


def against_svm(model: nn.Linear, svm: nn.Linear, x: Tensor, y: Tensor) -> str:
    """A boundary in words: its angle to the SVM's, and its strip and smallest margin as shares of the SVM's margin."""
    gamma = smallest_margin(svm, x, y)
    half, smallest = half_width(model, x, y) / gamma, smallest_margin(model, x, y) / gamma
    return (
        f"{angle(model, svm):4.1f}° from the SVM; half strip {half:.2f}, smallest margin {smallest:.2f} of its margin"
    )
