"""The figures of the notebooks, in one style; the same method has the same colour everywhere."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ammlib.deepfool import deepfool
from ammlib.evaluate import Margins
from ammlib.files import home
from ammlib.recipes import label
from ammlib.runs import Run

plt.style.use(Path(__file__).with_name("amm.mplstyle"))

COLOURS = {  # Okabe and Ito
    "reference": "#000000",
    "amm": "#0072B2",
    "no_high_order": "#56B4E9",
    "elsayed": "#E69F00",
    "min_inv": "#009E73",
    "min_lin": "#CC79A7",
    "avg_exp": "#0072B2",
    "avg_inv": "#009E73",
    "avg_lin": "#CC79A7",
}
DASHED = ("avg_exp", "avg_inv", "avg_lin")  # AVG as MIN of the same shrinkage, dashed
CLASSES = ("#0072B2", "#E69F00")


def figures_root() -> Path:
    """`$AMMLIB_FIGURES`, or `figures/` in the checkout."""
    return Path(os.environ.get("AMMLIB_FIGURES") or home() / "figures")


def save(figure: Figure, name: str) -> None:
    """Write a figure as PDF and PNG, the same bytes each time."""
    figures_root().mkdir(parents=True, exist_ok=True)
    figure.savefig(figures_root() / f"{name}.pdf", metadata={"CreationDate": None})
    figure.savefig(figures_root() / f"{name}.png", metadata={"Software": None})


def style_of(method: str) -> dict:
    return {"color": COLOURS[method], "linestyle": "--" if method in DASHED else "-", "label": label(method)}


def boundary(axes: Axes, model: nn.Module, x: Tensor, y: Tensor, title: str = "") -> None:
    """Points of the plane, the two sides that a binary classifier tells apart, and its boundary in red."""
    points = x.flatten(1)
    (left, low), (right, high) = points.amin(0).tolist(), points.amax(0).tolist()
    h, v = np.linspace(left - 1.5, right + 1.5, 301), np.linspace(low - 0.5, high + 0.5, 301)
    grid = torch.from_numpy(np.stack(np.meshgrid(h, v), -1)).float().view(-1, *x.shape[1:])
    with torch.no_grad():
        f = model(grid).view(len(v), len(h)).numpy()
    axes.contourf(h, v, f, levels=[-np.inf, 0, np.inf], colors=CLASSES, alpha=0.12)
    axes.contour(h, v, f, levels=[0], colors="red", linewidths=1.5)
    for label_, colour in enumerate(CLASSES):
        axes.scatter(*points[y == label_].T, s=3, color=colour, linewidths=0)
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
    axes.grid(False)


def margin_histogram(axes: Axes, found: Mapping[str, Margins], unit: str = "pixel units") -> None:
    """Distributions of test margins, one outline a method, with their means."""
    bins = np.linspace(0, max(float(m.norm.quantile(0.995)) for m in found.values()), 60)
    for method, m in found.items():
        style, mean = style_of(method), float(m.norm.mean())
        values, text = m.norm.clamp(max=bins[-1]).numpy(), f"{style['label']}, mean {mean:.2f}"
        axes.hist(values, bins, histtype="stepfilled", alpha=0.25, color=style["color"])
        axes.hist(values, bins, histtype="step", color=style["color"], linestyle=style["linestyle"], label=text)
        axes.axvline(mean, color=style["color"], linewidth=1, linestyle=":")
    axes.set(xlabel=f"margin $\\|\\Delta_x\\|_2$ ({unit})", ylabel="test images")
    axes.legend()


def gallery(models: Mapping[str, nn.Module], x: Tensor, names: Sequence[str] | None = None) -> Figure:
    """For each model a block of three rows: images, what DeepFool adds (all scaled alike), and their sum."""
    n, blocks = len(x), len(models)
    figure, axes = plt.subplots(3 * blocks, n, figsize=(0.85 * n + 0.5, 3.1 * blocks), squeeze=False)
    results = {method: deepfool(model, x) for method, model in models.items()}
    largest = max(float(result.delta.abs().max()) for result in results.values())
    for block, (method, model) in enumerate(models.items()):
        result = results[method]
        with torch.no_grad():
            after = model(x + result.delta).argmax(1)
        rows = axes[3 * block : 3 * block + 3]
        for i in range(n):
            old, new = (str(int(k)) if names is None else names[int(k)] for k in (result.prediction[i], after[i]))
            show(rows[0, i], x[i], f"{old}")
            show(rows[1, i], result.delta[i].mean(0, keepdim=True), f"{result.norm[i]:.2f}", largest)
            show(rows[2, i], (x[i] + result.delta[i]).clamp(0, 1), f"{new}")
        for row, text in zip(rows, (f"{label(method)}\nimage", "perturbation", "sum"), strict=True):
            row[0].set_ylabel(text)
    return figure


def show(axes: Axes, image: Tensor, title: str, largest: float | None = None) -> None:
    """An image (C, H, W) in [0, 1]; with `largest`, a change from -largest (blue) to +largest (red)."""
    image = image.permute(1, 2, 0).squeeze(-1).numpy()
    if largest is None:
        axes.imshow(image, vmin=0, vmax=1)
    else:
        axes.imshow(image, cmap="RdBu_r", vmin=-largest, vmax=largest)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, pad=2)
    axes.spines[:].set_visible(False)


def convergence(axes: Axes, runs: Sequence[Run], metric: str = "test_error") -> None:
    """A metric by epoch: mean over the seeds of each method, with their range."""
    for method in dict.fromkeys(run.recipe.method for run in runs):
        values = np.array([[e[metric] for e in run.history] for run in runs if run.recipe.method == method])
        epochs = np.arange(1, values.shape[1] + 1)
        axes.plot(epochs, values.mean(0), **style_of(method))
        axes.fill_between(epochs, values.min(0), values.max(0), color=COLOURS[method], alpha=0.15, linewidth=0)
    axes.set(xlabel="epoch", ylabel={"test_error": "test error (%)"}.get(metric, metric.replace("_", " ")))
    axes.legend()


def sweep(axes: Axes, runs: Sequence[Run], vary: str, all_of: int, metric: str = "error") -> None:
    """A metric by what a study varies: mean over the seeds of each method, standard deviation shaded."""
    for method in dict.fromkeys(run.recipe.method for run in runs):
        values: dict[int, list[float]] = {}
        for run in runs:
            if run.recipe.method == method:
                place = getattr(run.recipe, vary)
                values.setdefault(all_of if place is None else place, []).append(run.metrics[metric])
        places = sorted(values)
        mean, std = (np.array([f(values[place]) for place in places]) for f in (np.mean, spread))
        axes.plot(places, mean, marker="o", **style_of(method))
        axes.fill_between(places, mean - std, mean + std, color=COLOURS[method], alpha=0.15, linewidth=0)
    axes.legend()


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 where there is one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
