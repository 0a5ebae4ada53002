"""Figures of stored runs: along the training, over what a study varies, over the parameters of a search."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from ammlib.report.frame import LARGEST_FIRST, history, results
from ammlib.report.style import AXES, COLOURS, DASHED, MARKERS, finish, legend_below, lines, logarithmic, with_paper
from ammlib.training.runs import Run

SYMBOLS = {"lam": "λ", "gamma": "γ"}
DOTTED = {"-": ":", "--": "-."}  # what lines of a smaller scale are instead


def convergence(axes: Axes, runs: Sequence[Run], metric: str = "test_error", paper: DataFrame | None = None) -> None:
    """A metric by epoch: mean over the seeds of each method, with their range; at the right how the paper ended."""
    if runs:
        lines_by_scale(axes, history(runs), "epoch", metric, errorbar=("pi", 100))
    else:
        axes.set_xlim(0, 1)
    for row in with_paper(paper):
        colour = COLOURS[row.method]
        style: dict[str, Any] = {"color": colour, "markerfacecolor": "white" if row.method in DASHED else colour}
        style |= {"markersize": 8, "zorder": 1} if row.bound else {}  # a limit may be somebody else's number
        place = {"transform": axes.get_yaxis_transform(), "clip_on": False}
        axes.plot(1.04, row.paper, MARKERS[row.bound], **style, **place)
    if with_paper(paper):
        axes.text(1.04, 1.01, "paper", transform=axes.transAxes, ha="center", va="bottom")
    axes.set(xlabel="epoch", ylabel=AXES.get(metric, metric))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    low, high = axes.get_ylim()
    if metric == "test_error" and high > 3 * low:  # of fewer errors a logarithmic scale has too few numbers
        logarithmic(axes)
    elif metric != "test_error" and runs:
        axes.set_ylim(bottom=0)
    finish(axes, runs)


def lines_by_scale(axes: Axes, data: DataFrame, x: str, y: str, **looks: Any) -> None:
    """Lines that join runs of one scale only: beside those of the largest, others are dotted, AVG dash-dotted."""
    (_, largest), *others = sorted(data.groupby("scale"), key=lambda found: LARGEST_FIRST.index(found[0]))
    lines(axes, largest, x, y, **looks)
    for scale, part in others:
        drawn = len(axes.lines)
        lines(axes, part, x, y, **looks)
        for line in axes.lines[drawn:]:
            line.set_linestyle(DOTTED[line.get_linestyle()])
        axes.plot([], [], ":", color="0.4", label=f"{scale} scale")


def along_training(runs: Sequence[Run], *metrics: str) -> Figure:
    """Metrics by epoch, two in a row."""
    rows = (len(metrics) + 1) // 2
    figure, panels = plt.subplots(rows, 2, figsize=(7.2, 2.3 * rows + 0.4), squeeze=False, sharex=True)
    for axes, metric in zip(panels.flat, metrics, strict=False):
        convergence(axes, runs, metric)
        axes.set_title(axes.get_ylabel(), loc="left")
        axes.set(xlabel="", ylabel="")
    plt.setp(panels[-1], xlabel="epoch")
    return legend_below(figure)


def sweep(axes: Axes, runs: Sequence[Run], vary: str, all_of: int, paper: DataFrame | None = None) -> None:
    """Test error by what a study varies: mean over the seeds of each method, standard deviation shaded.

    `all_of` is what None stands for. White diamonds are numbers of the paper, white triangles limits.
    """
    if runs:
        found = results(runs).fillna({vary: all_of})
        lines_by_scale(axes, found, vary, "error", errorbar="sd", marker="o", markeredgewidth=0)
    known = with_paper(paper)
    for row in known:
        style = {"color": COLOURS[row.method], "markerfacecolor": "white", "markersize": 6, "zorder": 3}
        at = getattr(row, vary)
        axes.plot(all_of if pd.isna(at) else at, row.paper, MARKERS[row.bound], **style)
    kinds = {"limits" if row.bound else "numbers": MARKERS[row.bound] for row in known}
    for kind, marker in sorted(kinds.items(), reverse=True):
        axes.plot([], [], marker, color="0.4", markerfacecolor="white", label=f"the paper's {kind}")
    axes.set(ylabel=AXES["test_error"])
    axes.xaxis.set_major_formatter(lambda images, _: f"{images / 1000:g}k")
    logarithmic(axes)
    finish(axes, runs)


def grid_search(runs: Sequence[Run], chosen: Mapping[str, float]) -> Figure:
    """Validation error over λ and c (or γ), a panel for each d; a frame around the recipe's choice, the lowest bold.

    Values of d that were tried with one λ and c only share a panel.
    """
    up = "gamma" if "gamma" in chosen else "c"
    found = results(runs).reindex(columns=["lam", up, "d", "error"]).dropna(subset=["lam"]).astype(float)
    if found.empty:
        figure, axes = plt.subplots(figsize=(3.4, 2.8))
        finish(axes, ())
        return figure
    tables = {}
    for d, cells in found.groupby("d", dropna=False):
        if len(cells) > 1:
            tables[f"d = {d:g}" if d == d else ""] = cells.pivot(index=up, columns="lam", values="error")
    if len(tables) < found["d"].nunique():
        cells = found[(found["lam"] == chosen["lam"]) & (found[up] == chosen[up])]
        tables[f"{up} = {chosen[up]:g}"] = cells.pivot(index="d", columns="lam", values="error")

    widths = [table.shape[1] for table in tables.values()]
    size = 0.72 * sum(widths) + 0.7 * len(widths), 0.6 * max(len(table) for table in tables.values()) + 0.9
    figure, panels = plt.subplots(1, len(tables), figsize=size, width_ratios=widths, squeeze=False)
    low, high = found["error"].min(), found["error"].max()
    for axes, (title, table) in zip(panels[0], tables.items(), strict=True):
        table = table.sort_index(ascending=False)
        shades = {"cmap": "Greys", "vmin": low, "vmax": 2 * high - low, "cbar": False}  # light enough for black text
        sns.heatmap(table, annot=True, fmt=".2f", ax=axes, linewidths=1, annot_kws={"color": "black"}, **shades)
        axes.set(title=title, xlabel="λ")
        axes.set_ylabel(SYMBOLS.get(table.index.name, table.index.name), rotation=0)  # a letter is read upright
        axes.set_xticklabels([f"{value:g}" for value in table.columns])
        axes.set_yticklabels([f"{value:g}" for value in table.index], rotation=0)
        for text in axes.texts:
            text.set_weight("bold" if text.get_text() == f"{low:.2f}" else "normal")
        if title in ("", f"d = {chosen.get('d', 0):g}") and chosen["lam"] in table and chosen[up] in table.index:
            corner = table.columns.get_loc(chosen["lam"]), table.index.get_loc(chosen[up])
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, linewidth=2, clip_on=False))
    figure.suptitle("validation error (%)", fontsize="medium")
    return figure
