"""Figures of the linear case: samples of the plane, boundaries, and what the theorems say about them."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from ammlib.experiments.linear import (
    affine,
    covering_number,
    direction,
    generalisation_bound,
    log10_balls_needed,
    signed_margin,
    smallest_margin,
    weight_of_margin,
)
from ammlib.margin.amm import AMM
from ammlib.margin.parts import SHRINKAGE
from ammlib.report.style import CLASSES, style_of


def line_style(method: str) -> dict:
    """The colours of all figures, and the SVM's, wide and grey to lie behind others."""
    if method == "svm":
        return {"color": "0.75", "linewidth": 5, "label": "SVM"}
    return style_of("amm") | {"label": "MIN+EXP"} if method == "min_exp" else style_of(method)


def boundaries(
    axes: Axes, x: Tensor, y: Tensor, models: Sequence[tuple[str, nn.Linear]], title: str, before: Tensor | None = None
) -> None:
    """Samples, and the boundaries of pairs of a method (or "svm") and a model, in a square around the origin.

    Arrows start where samples of `before` were that have moved since.
    """
    for label, (marker, name) in enumerate((("o", "negative"), ("^", "positive"))):
        axes.scatter(*x[y == label].T, s=11, marker=marker, color=CLASSES[label], linewidths=0, label=name)
    for method, model in models:
        line(axes, model, **line_style(method))
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$", xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
    if before is not None:
        for row in (x != before).any(1).nonzero().flatten():
            move(axes, before[row], x[row])


def line(axes: Axes, model: nn.Linear, offset: float = 0.0, **style) -> None:
    """The boundary, or the line parallel to it `offset` away on the positive side."""
    w = direction(model)
    point = (offset - model.bias.item() / float(model.weight.detach().norm())) * w
    axes.axline(point.tolist(), (point + torch.stack([-w[1], w[0]])).tolist(), **style)


def strip(axes: Axes, model: nn.Linear, x: Tensor, y: Tensor, support: Tensor) -> None:
    """The edges of the empty strip between the classes, dashed, and circles around the support vectors."""
    m = signed_margin(model, x, y)
    for offset in (-m[y == 0].min(), m[y == 1].min()):
        line(axes, model, float(offset), color="0.3", linewidth=0.8, linestyle="--", label="SVM margins")
    circle = dict(facecolors="none", edgecolors="black", linewidths=0.9, label="support vectors")
    axes.scatter(*x[support].T, s=60, **circle)


def move(axes: Axes, old: Tensor, new: Tensor) -> None:
    """An arrow from where a sample was towards where it went, up to the edge if that is far outside; how far."""
    way = new - old
    length = float(way.norm())
    tip = old + way * min(1, 2.2 / length) if length else old
    axes.annotate("", tip.tolist(), old.tolist(), arrowprops=dict(arrowstyle="->", linewidth=1.2))
    axes.annotate(f"by {length:g}", tip.tolist(), (4, 0), textcoords="offset points", fontsize=8)
    axes.scatter(*old, s=11, marker="^", facecolors="none", edgecolors=CLASSES[1], linewidths=0.8)


def loss_over_b(axes: Axes, x: Tensor, y: Tensor, svm: nn.Linear, amms: Sequence[AMM]) -> None:
    """Regularisers along b at the SVM's direction, each scaled to 0 ... 1."""
    shift = torch.linspace(-0.95, 0.95, 77) * smallest_margin(svm, x, y)
    for amm in amms:
        loss = torch.stack([amm(affine(direction(svm), svm.bias.item() + float(b)), x, y).detach() for b in shift])
        scaled = (loss - loss.min()) / (loss.max() - loss.min())
        axes.plot(shift, scaled, **line_style(amm.name.replace("+", "_").lower()))
    axes.axvline(0, zorder=0, **line_style("svm"))
    axes.set(title="Along $b$, at the direction of the SVM", ylabel="regulariser, scaled to 0 ... 1")
    axes.set(xlabel="$b$ minus $b$ of the SVM (units of the data)", box_aspect=1)


def weights(axes: Axes, c: float) -> None:
    """What a sample counts for by its signed margin, for the three shrinkage functions; dots where R is cut off."""
    m = torch.linspace(-5, 8, 2001, dtype=torch.float64) / c
    for shrinkage in SHRINKAGE:
        weight = weight_of_margin(AMM("avg", shrinkage, lam=1, c=c, d=c), m)
        style = style_of(f"avg_{shrinkage}") | {"label": shrinkage.upper(), "linestyle": "-"}
        cut = [0] if (weight == 0).any() else []
        axes.semilogy(m[weight > 0], weight[weight > 0], marker="o", markevery=cut, **style)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set(title=f"Weight of a sample, $c$ = {c:g}", ylabel="weight $|\\partial R / \\partial m|$")
    axes.set(xlabel="misclassified  $\\leftarrow$  margin $m$  $\\rightarrow$  correct", box_aspect=1)


def turns(axes: Axes, distances: Sequence[float], angles: Mapping[str, Sequence[float]]) -> None:
    """Angles to the SVM's boundary by the distance that one sample was moved."""
    for method, values in angles.items():
        axes.plot(distances, values, marker="o", **line_style(method))
    axes.set(title="The farther, the more AVG+LIN turns", ylabel="angle to the SVM (degrees)")
    axes.set(xlabel="move of one sample (units of the data)", box_aspect=1)


def bounds(axes: Axes, sizes: Sequence[int], margins: Mapping[str, float]) -> None:
    """The bound of Theorem 3.2 in the unit square by margin, for numbers of samples; at the first, some methods'."""
    gamma = np.geomspace(0.01, 1.4, 400)  # from √2 on one ball covers the square
    for n, line in zip(sizes, ("-", "--", ":"), strict=True):
        axes.loglog(gamma, [generalisation_bound(g, n) for g in gamma], color="0.3", linestyle=line, label=f"n = {n:,}")
    for method, g in margins.items():
        style = line_style(method) | {"linestyle": "none", "marker": "o", "markersize": 6}
        axes.plot(g, generalisation_bound(g, sizes[0]), **style)
    axes.axhspan(1, 40, color="0.92", zorder=0)
    axes.text(1.3, 30, "vacuous: an error rate is at most 1", ha="right", va="top", fontsize=8)
    axes.set(title="Theorem 3.2 in the unit square", ylabel="bound of the generalisation error", ylim=(0.002, 40))
    axes.set(xlabel="smallest margin $\\gamma$ (sides of the square)", xlim=(0.01, 1.4))


def covering(axes: Axes, gamma: float, largest: int = 784) -> None:
    """How many balls of radius γ/2 cover the unit cube, by its dimension: between the two curves."""
    m = range(1, largest + 1)
    enough = [math.log10(covering_number(gamma / 2, k)) for k in m]
    needed = [max(0.0, log10_balls_needed(gamma / 2, k)) for k in m]
    axes.fill_between(m, needed, enough, color="0.9", linewidth=0)
    axes.plot(m, enough, color="0.3", label="enough (grid)")
    axes.plot(m, needed, color="0.3", linestyle="--", label="needed (volume)")
    axes.set(title=f"Balls of radius $\\gamma/2$ = {gamma / 2:g} that cover the unit cube")
    axes.set(xlabel="dimension $m$", ylabel="$\\log_{10}$ of their number")
