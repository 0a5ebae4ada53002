"""Figures of trained classifiers of images: how large their margins are, and what DeepFool adds to an image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pandas import DataFrame
from torch import Tensor, nn

from ammlib.margin.classifier import class_logits, frozen
from ammlib.margin.deepfool import deepfool
from ammlib.margin.margins import Margins
from ammlib.report.style import AXES, COLOURS, finish, with_paper
from ammlib.report.tables import named
from ammlib.training.recipes import label
from ammlib.training.runs import Run


def margin_histogram(axes: Axes, found: Mapping[str, Margins], units: str = "pixel units") -> None:
    """Distributions of test margins, one outline a method, with their means; the last bin holds all beyond."""
    largest = max(float(m.norm.quantile(0.995)) for m in found.values())
    most = max(len(m.norm) for m in found.values())
    bins = np.linspace(0, largest, 1 + round(2 * most ** (1 / 3)))  # Rice's rule: 14 bins for 360 images, 43 for 10,000
    values = {method: m.norm.clamp(max=largest).numpy() for method, m in found.items()}
    sns.histplot(values, bins=bins, element="step", palette=COLOURS, alpha=0.15, legend=False, ax=axes)
    for method, m in found.items():
        mean = float(m.norm.mean())
        axes.axvline(mean, color=COLOURS[method], linestyle=":", label=f"{label(method)}, mean {mean:.2f}")
    axes.set(xlabel=f"margin $\\|\\Delta_x\\|_2$ ({units})", ylabel="test images")
    axes.margins(x=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above, where no outline can be


def margin_panels(
    runs: Sequence[Run], live: Mapping[str, Margins], paper: DataFrame | None = None, of: str = ""
) -> Figure:
    """The stored margins of each run, with the paper's mean; above, if `live` has any, a histogram of those.

    `of` is the title of the histogram, where its nets are others than those of the runs. A box is from 25 to 75 %, its
    line at the median, the whiskers at 5 and 95 %, the dot at the mean of a run.
    """
    height = 0.5 + 0.25 * len(runs)
    if live:
        figure, (top, bottom) = plt.subplots(
            2, 1, sharex=True, figsize=(6.4, 2.6 + height), height_ratios=(2.6, height)
        )
        margin_histogram(top, live)
        top.set(xlabel="", title=of)
    else:
        figure, bottom = plt.subplots(figsize=(6.4, 0.6 + height))
    names = {} if paper is None else {row.digest: named(row.method, row.condition) for row in paper.itertuples()}
    for at, run in enumerate(runs):
        colour, name = COLOURS[run.recipe.method], names.get(run.recipe.digest, label(run.recipe.method))
        line = {"color": colour}
        looks = {"boxprops": {"facecolor": (colour, 0.2), "edgecolor": colour}, "whiskerprops": line, "capprops": line}
        looks |= {"medianprops": line, "meanprops": {"marker": "o", "markersize": 4, "mfc": colour, "mec": colour}}
        how = {"orientation": "horizontal", "patch_artist": True, "showmeans": True, "showfliers": False}
        bottom.bxp([box(run, name)], positions=[at], widths=0.6, **how, **looks)
    for row in with_paper(paper, "margin"):
        places = [i for i, run in enumerate(runs) if run.recipe.digest == row.digest]
        looks = {"color": COLOURS[row.method], "markerfacecolor": "white", "zorder": 3}
        bottom.plot([row.paper] * len(places), places, "D", **looks)
    bottom.set(xlabel=f"{AXES['margin']}, test images")
    bottom.invert_yaxis()
    finish(bottom, runs)
    return figure


def box(run: Run, name: str) -> dict[str, Any]:
    """What a box of `margin_panels` shows of a run."""
    quantiles = {"whislo": "q05", "q1": "q25", "med": "median", "q3": "q75", "whishi": "q95"}
    parts = {part: run.metrics[f"margin_{quantile}"] for part, quantile in quantiles.items()}
    return {**parts, "mean": run.metrics["margin"], "label": f"{name}, seed {run.seed}"}


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


def pushed(
    models: Mapping[str, nn.Module], x: Tensor, names: Sequence[str] | None = None, label_of_x: int | None = None
) -> Figure:
    """An image (C, H, W), and for each model how far it must be pushed until the prediction changes.

    At the left Δ_x; then the image on its way there and beyond, red where the prediction has changed. Below: how far
    the first prediction's logit is ahead, straight on that way, and at DeepFool's steps (dots).
    """
    found = {method: Push.of(model, x.unsqueeze(0)) for method, model in models.items()}
    end = 1.15 * max(push.norms[-1] for push in found.values())
    largest = max(float(push.delta.mean(1).abs().max()) for push in found.values())
    rows = len(models) + 1
    ratios = {"width_ratios": (1, 7), "height_ratios": [1] * len(models) + [1.9]}
    figure, panels = plt.subplots(rows, 2, figsize=(8.6, 1.02 * rows + 1.1), **ratios)
    called = "" if label_of_x is None else f", {label_of_x if names is None else names[label_of_x]}"
    show(panels[-1, 0], x, f"image $x${called}")
    for (left, strip), (method, push) in zip(panels, found.items(), strict=False):
        show(
            left,
            push.delta[0].mean(0, keepdim=True),
            f"{label(method)}\n$\\Delta_x$, norm {push.norms[-1]:.2f}",
            largest,
        )
        for distance in np.linspace(0, end, 9):
            image, said, ahead = push.at(distance)
            colour, corner, width = COLOURS[method] if ahead > 0 else "red", distance - end / 19, 2 * end / 19
            pixels = image[0].permute(1, 2, 0).squeeze(-1).clip(0, 1).cpu().numpy()
            strip.imshow(pixels, vmin=0, vmax=1, extent=(corner, corner + width, 0, 1), aspect="auto")
            strip.add_patch(Rectangle((corner, 0), width, 1, fill=False, edgecolor=colour, linewidth=2, clip_on=False))
            strip.text(distance, 1.04, said if names is None else names[said], ha="center", color=colour)
        strip.set_axis_off()
        way = np.linspace(0, end, 60)
        panels[-1, 1].plot(way, [push.at(distance)[2] for distance in way], color=COLOURS[method], label=label(method))
        panels[-1, 1].plot(push.norms, push.gaps, "o", color=COLOURS[method])
    for axes in panels[:, 1]:
        axes.set_xlim(-end / 18, end * 19 / 18)
    panels[-1, 1].axhline(0, color="red", linewidth=1)
    panels[-1, 1].set(xlabel="pushed by (pixel units)", ylabel="logit ahead by")
    panels[-1, 1].legend()
    return figure


@dataclass(frozen=True)
class Push:
    """The way of DeepFool from an image (1, C, H, W)."""

    model: nn.Module
    x: Tensor
    delta: Tensor  # at its end
    norms: list[float]  # at its steps, from 0
    gaps: list[float]  # how far the first prediction's logit is ahead there

    @classmethod
    def of(cls, model: nn.Module, x: Tensor) -> "Push":
        deltas, steps = [torch.zeros_like(x)], int(deepfool(model, x).steps)
        deltas += [deepfool(model, x, steps=i).delta for i in range(1, steps + 1)]
        gaps = [lead(model, x, x + delta)[1] for delta in deltas]
        return cls(model, x, deltas[-1], [float(delta.norm()) for delta in deltas], gaps)

    def at(self, distance: float) -> tuple[Tensor, int, float]:
        """The image pushed so far, what the model says there, and how far the first prediction is ahead."""
        image = self.x + distance / self.norms[-1] * self.delta
        return image, *lead(self.model, self.x, image)


def lead(model: nn.Module, x: Tensor, there: Tensor) -> tuple[int, float]:
    """The prediction `there`, and by how much the logit of the one at x is above all others."""
    with torch.no_grad(), frozen(model, x):
        f, (first,) = class_logits(model, there)[0], class_logits(model, x).argmax(1)
    others = torch.cat([f[:first], f[first + 1 :]])
    return int(f.argmax()), float(f[first] - others.max())


def attack(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """DeepFool's perturbations, their norms, and the predictions before and after, on the CPU."""
    x = x.to(next(model.parameters()).device)
    found = deepfool(model, x)
    with torch.no_grad(), frozen(model, x):
        after = class_logits(model, x + found.delta).argmax(1)
    return tuple(t.cpu() for t in (found.delta, found.norm, found.prediction, after))


def show(axes: Axes, image: Tensor, title: str = "", largest: float | None = None) -> None:
    """An image (C, H, W) in [0, 1], what lies beyond cut off; with `largest`, a change from -largest to +largest."""
    pixels = image.permute(1, 2, 0).squeeze(-1).cpu().numpy()
    if largest is None:
        axes.imshow(pixels.clip(0, 1), vmin=0, vmax=1)
    else:
        axes.imshow(pixels, cmap="RdBu_r", vmin=-largest, vmax=largest)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.set_title(title, pad=2)
    axes.spines[:].set_visible(False)
