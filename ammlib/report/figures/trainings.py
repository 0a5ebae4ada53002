"""Figures of stored runs: along the training, over what a study varies, over the parameters of a search."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ammlib.report.style import AXES, COLOURS, DASHED, MARKERS, finish, logarithmic, style_of, with_paper
from ammlib.report.tables import Row
from ammlib.training.recipes import Recipe
from ammlib.training.runs import Run


def convergence(axes: Axes, runs: Sequence[Run], metric: str = "test_error", paper: Sequence[Row] = ()) -> None:
    """A metric by epoch: mean over the seeds of each method, with their range; at the right how the paper ended."""
    for method in dict.fromkeys(run.recipe.method for run in runs):
        histories = [run.history for run in runs if run.recipe.method == method]
        values = [[entry[metric] for entry in history] for history in histories]
        if None not in values[0]:  # a reference keeps no samples
            epochs = [entry["epoch"] for entry in histories[0]]  # not every one of a long training
            axes.plot(epochs, np.mean(values, 0), **style_of(method))
            axes.fill_between(epochs, np.min(values, 0), np.max(values, 0), color=COLOURS[method], alpha=0.15, lw=0)
    for row in with_paper(paper):
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
    if with_paper(paper):
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
    for row in with_paper(paper):
        style = {"color": COLOURS[row.recipe.method], "markerfacecolor": "white", "markersize": 6, "zorder": 3}
        axes.plot(place(row.recipe), row.paper.value, MARKERS[row.paper.bound], **style)
    known = {"limits" if row.paper.bound else "numbers": MARKERS[row.paper.bound] for row in with_paper(paper)}
    for kind, marker in sorted(known.items(), reverse=True):
        axes.plot([], [], marker, color="0.4", markerfacecolor="white", label=f"the paper's {kind}")
    axes.set(ylabel=AXES["test_error"])
    axes.xaxis.set_major_formatter(lambda images, _: f"{images / 1000:g}k")
    logarithmic(axes)
    finish(axes, runs)


def grid_search(runs: Sequence[Run], chosen: Mapping[str, float]) -> Figure:
    """Validation error over λ and c (or γ), a panel for each d; a frame around the recipe's choice, the lowest bold."""
    across, up, by = "lam", "gamma" if "gamma" in chosen else "c", "d"
    runs = [run for run in runs if run.recipe.regulariser]  # a search may have a reference
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


def spread(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 where there is one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
