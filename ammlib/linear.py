"""Sections 3.2 and 3.3 in the plane: AMM on f(x) = w·x + b, where every answer has a closed form to hold it against.

Samples are rows of x, float64; labels are 0 (negative) and 1 (positive).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.svm import SVC
from torch import Tensor, nn

from ammlib import plots
from ammlib.amm import AMM, SHRINKAGE


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
            model.weight -= step * g[0]
            model.bias -= step * g[1]
            model.weight /= model.weight.norm()
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
    value = amm.shrink(torch.where(m > 0, -amm.c * m, -amm.d * m), amm.lam, amm.clip)
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


def style_of(method: str) -> dict:
    """The colours of `plots`, and the SVM's, wide and grey to lie behind others."""
    if method == "svm":
        return {"color": "0.75", "linewidth": 5, "label": "SVM"}
    return plots.style_of("amm") | {"label": "MIN+EXP"} if method == "min_exp" else plots.style_of(method)


def draw_boundaries(
    axes: Axes, x: Tensor, y: Tensor, models: Sequence[tuple[str, nn.Linear]], title: str, limit: float = 5.0
) -> None:
    """Samples, and the boundaries of pairs of a method (or "svm") and a model, in a square around the origin."""
    for label, (marker, name) in enumerate((("o", "negative"), ("^", "positive"))):
        axes.scatter(*x[y == label].T, s=11, marker=marker, color=plots.CLASSES[label], linewidths=0, label=name)
    for method, model in models:
        draw_line(axes, model, **style_of(method))
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$", xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
    legend_below(axes)


def legend_below(axes: Axes) -> None:
    """Under the axis label, each name once."""
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    axes.legend(
        once.values(), once, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2 if len(once) in (2, 4) else 3
    )


def draw_line(axes: Axes, model: nn.Linear, offset: float = 0.0, **style) -> None:
    """The boundary, or the line parallel to it `offset` away on the positive side."""
    w = direction(model)
    point = (offset - model.bias.item() / float(model.weight.detach().norm())) * w
    axes.axline(point.tolist(), (point + torch.stack([-w[1], w[0]])).tolist(), **style)


def draw_strip(axes: Axes, model: nn.Linear, x: Tensor, y: Tensor, support: Tensor) -> None:
    """The edges of the empty strip between the classes, dashed, and circles around the support vectors."""
    m = signed_margin(model, x, y)
    for offset in (-m[y == 0].min(), m[y == 1].min()):
        draw_line(axes, model, float(offset), color="0.3", linewidth=0.8, linestyle="--", label="SVM margins")
    style = dict(facecolors="none", edgecolors="black", linewidths=0.9, label="support vectors")
    axes.scatter(*x[support].T, s=60, **style)
    legend_below(axes)


def draw_move(axes: Axes, old: Tensor, new: Tensor) -> None:
    """An arrow from where a sample was towards where it went, far outside."""
    tip = old + 2.2 * (new - old) / (new - old).norm()
    axes.annotate("", tip.tolist(), old.tolist(), arrowprops=dict(arrowstyle="->", linewidth=1.2))
    axes.scatter(*old, s=11, marker="^", facecolors="none", edgecolors=plots.CLASSES[1], linewidths=0.8)


def draw_loss_over_b(axes: Axes, x: Tensor, y: Tensor, svm: nn.Linear, amms: Sequence[AMM]) -> None:
    """Regularisers along b at the SVM's direction, each scaled to 0 ... 1."""
    shift = torch.linspace(-0.95, 0.95, 77) * smallest_margin(svm, x, y)
    for amm in amms:
        loss = torch.stack([amm(affine(direction(svm), svm.bias.item() + float(b)), x, y).detach() for b in shift])
        scaled = (loss - loss.min()) / (loss.max() - loss.min())
        axes.plot(shift, scaled, **style_of(amm.name.replace("+", "_").lower()))
    axes.axvline(0, zorder=0, **style_of("svm"))
    axes.set(title="Along $b$, at the direction of the SVM", ylabel="regulariser, scaled to 0 ... 1")
    axes.set(xlabel="$b$ minus $b$ of the SVM (units of the data)", box_aspect=1)
    legend_below(axes)


def draw_weights(axes: Axes, c: float) -> None:
    """What a sample counts for by its signed margin, for the three shrinkage functions; dots where R is cut off."""
    m = torch.linspace(-5, 8, 2001, dtype=torch.float64) / c
    for shrinkage in SHRINKAGE:
        weight = weight_of_margin(AMM("avg", shrinkage, lam=1, c=c, d=c), m)
        style = plots.style_of(f"avg_{shrinkage}") | {"label": shrinkage.upper(), "linestyle": "-"}
        axes.semilogy(m[weight > 0], weight[weight > 0], **style)
        if (weight == 0).any():
            axes.plot(m[weight > 0][0], weight[weight > 0][0], marker="o", color=style["color"])
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set(title=f"Weight of a sample, $c$ = {c:g}", ylabel="weight $|\\partial R / \\partial m|$")
    axes.set(xlabel="misclassified  $\\leftarrow$  margin $m$  $\\rightarrow$  correct", box_aspect=1)
    legend_below(axes)


def draw_turns(axes: Axes, distances: Sequence[float], angles: Mapping[str, Sequence[float]]) -> None:
    """Angles to the SVM's boundary by the distance that one sample was moved."""
    for method, values in angles.items():
        axes.plot(distances, values, marker="o", **style_of(method))
    axes.set(title="The farther, the more AVG+LIN turns", ylabel="angle to the SVM (degrees)")
    axes.set(xlabel="move of one sample (units of the data)", box_aspect=1)
    legend_below(axes)


def draw_bounds(axes: Axes, sizes: Sequence[int], margins: Mapping[str, float]) -> None:
    """The bound of Theorem 3.2 in the unit square by margin, for numbers of samples; at the first, some methods'."""
    gamma = np.geomspace(0.01, 1.4, 400)  # from √2 on one ball covers the square
    for n, line in zip(sizes, ("-", "--", ":"), strict=True):
        axes.loglog(gamma, [generalisation_bound(g, n) for g in gamma], color="0.3", linestyle=line, label=f"n = {n:,}")
    for method, g in margins.items():
        style = style_of(method) | {"linestyle": "none", "marker": "o", "markersize": 6}
        axes.plot(g, generalisation_bound(g, sizes[0]), **style)
    axes.axhspan(1, 40, color="0.92", zorder=0)
    axes.text(1.3, 30, "vacuous: an error rate is at most 1", ha="right", va="top", fontsize=8)
    axes.set(title="Theorem 3.2 in the unit square", ylabel="bound of the generalisation error", ylim=(0.002, 40))
    axes.set(xlabel="smallest margin $\\gamma$ (sides of the square)", xlim=(0.01, 1.4))
    legend_below(axes)


def draw_covering(axes: Axes, gamma: float, largest: int = 784) -> None:
    """How many balls of radius γ/2 cover the unit cube, by its dimension: between the two curves."""
    m = range(1, largest + 1)
    enough = [math.log10(covering_number(gamma / 2, k)) for k in m]
    needed = [max(0.0, log10_balls_needed(gamma / 2, k)) for k in m]
    axes.fill_between(m, needed, enough, color="0.9", linewidth=0)
    axes.plot(m, enough, color="0.3", label="enough (grid)")
    axes.plot(m, needed, color="0.3", linestyle="--", label="needed (volume)")
    axes.set(title=f"Balls of radius $\\gamma/2$ = {gamma / 2:g} that cover the unit cube")
    axes.set(xlabel="dimension $m$", ylabel="$\\log_{10}$ of their number")
    legend_below(axes)
