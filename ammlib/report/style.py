"""One style for all figures: the same method has the same colour everywhere."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ammlib.data.files import home
from ammlib.report.tables import Row
from ammlib.training.recipes import label
from ammlib.training.runs import Run

plt.style.use(Path(__file__).parent / "amm.mplstyle")

COLOURS = {  # Okabe and Ito
    "reference": "#000000",
    "control": "#999999",
    "amm": "#0072B2",
    "no_high_order": "#56B4E9",
    "elsayed": "#E69F00",
    "deep_defense": "#D55E00",
    "refined": "#882255",
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
    "test_margin": "margin of a few test images",
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


def logarithmic(axes: Axes) -> None:
    """Errors on a logarithmic scale, with plain numbers beside it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def with_paper(rows: Iterable[Row], metric: str = "error") -> list[Row]:
    """The rows of a metric that have a number of the paper."""
    return [row for row in rows if row.metric == metric and row.paper is not None]


def finish(axes: Axes, runs: Sequence[Run]) -> None:
    """The legend, if there are lines; where there is nothing to show, a word about it."""
    if not runs:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", va="center", color="0.4", fontsize=12)
        if not axes.lines:
            axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
    elif lines := axes.get_legend_handles_labels()[0]:
        axes.legend(ncols=2 if len(lines) > 4 else 1)
