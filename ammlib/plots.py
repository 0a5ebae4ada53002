"""The figures of the notebooks, in one style; the same method has the same colour everywhere."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from torch import Tensor, nn

from ammlib.classifier import class_logits, frozen
from ammlib.deepfool import deepfool
from ammlib.evaluate import Margins
from ammlib.files import home
from ammlib.recipes import Recipe, label
from ammlib.runs import Run
from ammlib.tables import Row

plt.style.use(Path(__file__).with_name("amm.mplstyle"))

COLOURS = {  # Okabe and Ito
    "reference": "#000000",
    "amm": "#0072B2",
    "no_high_order": "#56B4E9",
    "elsayed": "#E69F00",
    "deep_defense": "#D55E00",
    "min_inv": "#009E73",
    "min_lin": "#CC79A7",
    "avg_exp": "#0072B2",
    "avg_inv": "#009E73",
    "avg_lin": "#CC79A7",
}
DASHED = ("avg_exp", "avg_inv", "avg_lin")  # AVG as MIN of the same shrinkage, dashed
CLASSES = ("#0072B2", "#E69F00")
MARKERS = {"": "D", "<": "v", ">": "^"}  # of the paper's numbers; of a limit, pointing to where its result was
AXES = {
    "test_error": "test error (%)",
    "train_error": "training error (%)",
    "margin": "margin $\\|\\Delta_x\\|_2$ (pixel units)",
    "test_margin": "margin of 200 test images",
    "kept": "samples kept of a batch",
    "kept_margin": "margin of the kept, correct",
    "regulariser": "regularisation term",
}


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
    h, v, f = boundary_line(axes, model, x, linewidths=1.5)
    axes.contourf(h, v, f, levels=[-np.inf, 0, np.inf], colors=CLASSES, alpha=0.12)
    for label_, colour in enumerate(CLASSES):
        axes.scatter(*x.flatten(1)[y == label_].T, s=3, color=colour, linewidths=0)
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
    axes.grid(False)


def boundary_line(axes: Axes, model: nn.Module, x: Tensor, linewidths: float = 0.8) -> tuple[np.ndarray, ...]:
    """The boundary of a binary classifier in red around the points x; gives the grid and f on it."""
    points = x.flatten(1)
    (left, low), (right, high) = points.amin(0).tolist(), points.amax(0).tolist()
    h, v = np.linspace(left - 1.5, right + 1.5, 301), np.linspace(low - 0.5, high + 0.5, 301)
    grid = torch.from_numpy(np.stack(np.meshgrid(h, v), -1)).float().view(-1, *x.shape[1:])
    with torch.no_grad():
        f = model(grid).view(len(v), len(h)).numpy()
    axes.contour(h, v, f, levels=[0], colors="red", linewidths=linewidths)
    return h, v, f


def margin_histogram(axes: Axes, found: Mapping[str, Margins], unit: str = "pixel units") -> None:
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
    axes.set(xlabel=f"margin $\\|\\Delta_x\\|_2$ ({unit})", ylabel="test images")
    axes.margins(x=0)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above, where no outline can be


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


def convergence(axes: Axes, runs: Sequence[Run], metric: str = "test_error", paper: Sequence[Row] = ()) -> None:
    """A metric by epoch: mean over the seeds of each method, with their range; at the right how the paper ended."""
    for method in dict.fromkeys(run.recipe.method for run in runs):
        histories = [run.history for run in runs if run.recipe.method == method]
        values = [[entry[metric] for entry in history] for history in histories]
        if None not in values[0]:  # a reference keeps no samples
            epochs = [entry["epoch"] for entry in histories[0]]  # not every one of a long training
            axes.plot(epochs, np.mean(values, 0), **style_of(method))
            axes.fill_between(epochs, np.min(values, 0), np.max(values, 0), color=COLOURS[method], alpha=0.15, lw=0)
    for row in published(paper):
        colour = COLOURS[row.recipe.method]
        style = {"color": colour, "markerfacecolor": "white" if row.recipe.method in DASHED else colour}
        axes.plot(
            1.04,
            row.paper.value,
            MARKERS[row.paper.bound],
            **style,
            clip_on=False,
            transform=axes.get_yaxis_transform(),
        )
    if not runs:
        axes.set_xlim(0, 1)
    if published(paper):
        axes.text(1.04, 1.01, "paper", transform=axes.transAxes, ha="center", va="bottom")
    axes.set(xlabel="epoch", ylabel=AXES.get(metric, metric))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if metric == "test_error":
        logarithmic(axes)
    elif runs:
        axes.set_ylim(bottom=0)
    finish(axes, runs)


def along_training(runs: Sequence[Run], *metrics: str) -> Figure:
    """Metrics by epoch, side by side."""
    figure, panels = plt.subplots(1, len(metrics), figsize=(2.6 * len(metrics), 2.7))
    for axes, metric in zip(panels, metrics, strict=True):
        convergence(axes, runs, metric)
        if axes.get_legend():
            axes.get_legend().remove()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def sweep(axes: Axes, runs: Sequence[Run], vary: str, all_of: int, paper: Iterable[Row] = ()) -> None:
    """Test error by what a study varies: mean over the seeds of each method, standard deviation shaded.

    `all_of` is what None stands for. White diamonds are numbers of the paper, white triangles limits.
    """

    def place(recipe: Recipe) -> int:
        return all_of if getattr(recipe, vary) is None else getattr(recipe, vary)

    for method in dict.fromkeys(run.recipe.method for run in runs):
        values: dict[int, list[float]] = {}
        for run in runs:
            if run.recipe.method == method:
                values.setdefault(place(run.recipe), []).append(run.metrics["error"])
        places = sorted(values)
        mean, std = (np.array([f(values[at]) for at in places]) for f in (np.mean, spread))
        axes.plot(places, mean, marker="o", **style_of(method))
        axes.fill_between(places, mean - std, mean + std, color=COLOURS[method], alpha=0.15, linewidth=0)
    for row in published(paper):
        style = {"color": COLOURS[row.recipe.method], "markerfacecolor": "white", "markersize": 6, "zorder": 3}
        axes.plot(place(row.recipe), row.paper.value, MARKERS[row.paper.bound], **style)
    axes.plot([], [], "D", color="0.4", markerfacecolor="white", label="the paper's text")
    axes.set(ylabel=AXES["test_error"])
    axes.xaxis.set_major_formatter(lambda images, _: f"{images / 1000:g}k")
    logarithmic(axes)
    finish(axes, runs)


def grid_search(runs: Sequence[Run], chosen: Mapping[str, float]) -> Figure:
    """Validation error over λ and c (or γ), a panel for each d; a frame around the recipe's choice, the lowest bold."""
    across, up, by = "lam", "gamma" if "gamma" in chosen else "c", "d"
    found = {tuple(run.recipe.regulariser.get(name) for name in (by, up, across)): run.metrics["error"] for run in runs}
    depth, height, width = (sorted({key[i] for key in found}) or [0] for i in range(3))
    figure, panels = plt.subplots(1, len(depth), figsize=(0.6 + 2.6 * len(depth), 2.8), squeeze=False, sharey=True)
    for axes, d in zip(panels[0], depth, strict=True):
        values = np.array([[found.get((d, c, lam), np.nan) for lam in width] for c in height])
        low, high = min(found.values(), default=0), max(found.values(), default=1)
        axes.imshow(values, cmap="Blues", origin="lower", vmin=low, vmax=2 * high - low)  # light enough for black text
        for (row, column), value in np.ndenumerate(values):
            text, weight = f"{value:.2f}" if np.isfinite(value) else "", "bold" if value == low else "normal"
            axes.text(column, row, text, ha="center", va="center", weight=weight)
        axes.set_title(f"validation error (%), d = {d:g}" if runs and d is not None else "validation error (%)")
        axes.set(xlabel="λ", xticks=range(len(width)), yticks=range(len(height)))
        axes.set(xticklabels=[f"{lam:g}" for lam in width], yticklabels=[f"{c:g}" for c in height])
        axes.grid(False)
        if (d, chosen.get(up), chosen.get(across)) in found and d == chosen.get(by):
            corner = width.index(chosen[across]) - 0.48, height.index(chosen[up]) - 0.48
            axes.add_patch(Rectangle(corner, 0.96, 0.96, fill=False, edgecolor="#D55E00", linewidth=2))
        finish(axes, runs)
    panels[0, 0].set_ylabel("γ" if up == "gamma" else up)
    return figure


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
    for row in published(paper, "margin"):
        at = [i for i, run in enumerate(runs) if run.recipe == row.recipe]
        bottom.plot([row.paper.value] * len(at), at, "D", color=COLOURS[row.recipe.method], markerfacecolor="white")
    bottom.set(xlabel=f"{AXES['margin']}, test images", yticks=range(len(runs)))
    bottom.set_yticklabels([f"{label(run.recipe.method)}, seed {run.seed}" for run in runs])
    bottom.margins(y=0.15)
    bottom.invert_yaxis()
    finish(bottom, runs)
    return figure


def logarithmic(axes: Axes) -> None:
    """Errors on a logarithmic scale, with plain numbers beside it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def published(rows: Iterable[Row], metric: str = "error") -> list[Row]:
    """The rows of a metric that have a number of the paper."""
    return [row for row in rows if row.metric == metric and row.paper is not None]


def finish(axes: Axes, runs: Sequence[Run]) -> None:
    """The legend, if there are lines; where there is nothing to show, a word about it."""
    if not runs:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", va="center", color="0.4", fontsize=12)
        if not axes.lines:
            axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
    elif axes.get_legend_handles_labels()[0]:
        axes.legend()


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 where there is one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
