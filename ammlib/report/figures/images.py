"""Figures of trained classifiers of images: how large their margins are, and what DeepFool adds to an image."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ammlib.margin.classifier import class_logits, frozen
from ammlib.margin.deepfool import deepfool
from ammlib.margin.margins import Margins
from ammlib.report.style import AXES, COLOURS, finish, style_of, with_paper
from ammlib.report.tables import Row
from ammlib.training.recipes import label
from ammlib.training.runs import Run


def margin_histogram(axes: Axes, found: Mapping[str, Margins], units: str = "pixel units") -> None:
    """Distributions of test margins, one outline a method, with their means; the last bin holds all beyond."""
    largest = max(float(m.norm.quantile(0.995)) for m in found.values())
    most = max(len(m.norm) for m in found.values())
    bins = np.linspace(0, largest, 1 + round(2 * most ** (1 / 3)))  # Rice's rule: 14 bins for 360 images, 43 for 10,000
    for method, m in found.items():
        style, mean = style_of(method), float(m.norm.mean())
        values = m.norm.clamp(max=largest).numpy()
        axes.hist(values, bins, histtype="stepfilled", alpha=0.15, color=style["color"])
        axes.hist(values, bins, histtype="step", linewidth=1.5, **{**style, "label": None})
        axes.axvline(mean, linewidth=1, color=style["color"], linestyle=":")
        axes.plot([], [], **{**style, "label": f"{style['label']}, mean {mean:.2f}"})
    axes.set(xlabel=f"margin $\\|\\Delta_x\\|_2$ ({units})", ylabel="test images")
    axes.margins(x=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above, where no outline can be


def margin_panels(runs: Sequence[Run], live: Mapping[str, Margins], paper: Iterable[Row] = ()) -> Figure:
    """The stored margins of each run, with the paper's mean; above, if `live` has any, a histogram of those.

    A box is from 25 to 75 %, its line at the median, the whiskers at 5 and 95 %, the dot at the mean of a run.
    """
    if live:
        figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(5.2, 4.2), height_ratios=(3, 2))
        margin_histogram(top, live)
        top.set_xlabel("")
    else:
        figure, bottom = plt.subplots(figsize=(5.2, 1.8))
    for at, run in enumerate(runs):
        m, colour = run.metrics, COLOURS[run.recipe.method]
        line = {"color": colour, "solid_capstyle": "butt"}
        bottom.plot((m["margin_q05"], m["margin_q95"]), (at, at), linewidth=1, **line)
        bottom.plot((m["margin_q25"], m["margin_q75"]), (at, at), linewidth=8, alpha=0.4, **line)
        bottom.plot(m["margin_median"], at, "|", color=colour, markersize=8)
        bottom.plot(m["margin"], at, "o", color=colour)
    paper = list(paper)
    for row in with_paper(paper, "margin"):
        at = [i for i, run in enumerate(runs) if run.recipe == row.recipe]
        bottom.plot([row.paper.value] * len(at), at, "D", color=COLOURS[row.recipe.method], markerfacecolor="white")
    bottom.set(xlabel=f"{AXES['margin']}, test images", yticks=range(len(runs)))
    names = {row.recipe: row.method for row in paper}
    methods = [names.get(run.recipe, label(run.recipe.method)) for run in runs]
    bottom.set_yticklabels([f"{method}, seed {run.seed}" for method, run in zip(methods, runs, strict=True)])
    bottom.margins(y=0.15)
    bottom.invert_yaxis()
    finish(bottom, runs)
    return figure


def gallery(models: Mapping[str, nn.Module], x: Tensor, names: Sequence[str] | None = None) -> Figure:
    """Images and, for each model, what DeepFool adds with its norm, and the sum with the predictions before and after.

    All perturbations have one colour scale; `names` are those of the classes.
    """
    rows, n = 1 + 2 * len(models), len(x)
    figure, axes = plt.subplots(rows, n, figsize=(0.8 * n + 1.6, 0.95 * rows), squeeze=False)
    found = {method: attack(model, x) for method, model in models.items()}
    largest = max(float(delta.mean(1).abs().max()) for delta, *_ in found.values())
    for i in range(n):
        show(axes[0, i], x[i])
    for row, (method, (delta, norm, before, after)) in zip(range(1, rows, 2), found.items(), strict=True):
        for i in range(n):
            old, new = (k if names is None else names[k] for k in (int(before[i]), int(after[i])))
            show(axes[row, i], delta[i].mean(0, keepdim=True), f"{norm[i]:.2f}", largest)
            show(axes[row + 1, i], x[i].cpu() + delta[i], f"{old} → {new}")
            if names is not None:
                axes[row + 1, i].title.set_fontsize("small")  # so that words fit
        axes[row, 0].set_ylabel(f"{label(method)}\n$\\Delta_x$, its norm")
        axes[row + 1, 0].set_ylabel("$x + \\Delta_x$,\nprediction")
    axes[0, 0].set_ylabel("image $x$")
    for ax in axes[:, 0]:
        ax.yaxis.label.set(rotation=0, ha="right", va="center")
    bar = figure.colorbar(axes[1, 0].images[0], ax=axes[1:], fraction=0.02, aspect=40, pad=0.01)
    bar.set_label("$\\Delta_x$ (pixel units)")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once: with so many axes it takes seconds
    return figure


def attack(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """DeepFool's perturbations, their norms, and the predictions before and after, on the CPU."""
    x = x.to(next(model.parameters()).device)
    found = deepfool(model, x)
    with torch.no_grad(), frozen(model, x):
        after = class_logits(model, x + found.delta).argmax(1)
    return tuple(t.cpu() for t in (found.delta, found.norm, found.prediction, after))


def show(axes: Axes, image: Tensor, title: str = "", largest: float | None = None) -> None:
    """An image (C, H, W) in [0, 1], what lies beyond cut off; with `largest`, a change from -largest to +largest."""
    image = image.permute(1, 2, 0).squeeze(-1).cpu().numpy()
    if largest is None:
        axes.imshow(image.clip(0, 1), vmin=0, vmax=1)
    else:
        axes.imshow(image, cmap="RdBu_r", vmin=-largest, vmax=largest)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.set_title(title, pad=2)
    axes.spines[:].set_visible(False)
