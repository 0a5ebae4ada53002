"""One style for all figures: a colour has one meaning everywhere."""

import os
from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import seaborn as sns
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from pandas import DataFrame
from PIL import Image

from ammlib.data.files import home
from ammlib.methods.registry import METHODS
from ammlib.training.recipes import label
from ammlib.training.runs import Run

plt.style.use(Path(__file__).parent / "amm.mplstyle")

COLOURS = {name: row.colour for name, row in METHODS.items()}
DASHED = tuple(name for name, row in METHODS.items() if row.dashed)
CLASSES = ("#6F63B6", "#A6761D")  # of points of the plane, negative and positive
ATTACKS = {
    "deepfool": "#B3446C",
    "tight": "#2F6B4F",
    "tight, 100 steps": "#8DB600",
    "DDN (foolbox)": "#C9A227",
    "FAB (adv-lib)": "#7E8FA8",
}
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
exploring = False  # a notebook has other parameters than its own; `check_parameters` says so


def figures_root() -> Path:
    """`$AMMLIB_FIGURES`; or in the checkout `figures/`, for a notebook with other parameters `out/figures/`."""
    return Path(os.environ.get("AMMLIB_FIGURES") or home() / ("out/figures" if exploring else "figures"))


def save(figure: Figure, name: str) -> None:
    """Write a figure as PDF and PNG, the same bytes each time."""
    figures_root().mkdir(parents=True, exist_ok=True)
    figure.savefig(figures_root() / f"{name}.pdf", metadata={"CreationDate": None})
    image(figure).save(figures_root() / f"{name}.png", optimize=True)


def image(figure: Figure) -> Image.Image:
    """Two pixels for each of a screen, in 256 colours: a third of the bytes."""
    file = BytesIO()
    figure.savefig(file, dpi=2 * figure.dpi, format="png")
    return Image.open(file).convert("RGB").quantize(256)


def inline(figure: Figure) -> tuple[bytes, dict[str, int]]:
    """What a notebook holds of a figure: its image, and the size on the screen."""
    file, drawn = BytesIO(), image(figure)
    drawn.save(file, format="png", optimize=True)
    return file.getvalue(), {"width": drawn.width // 2, "height": drawn.height // 2}


if get_ipython():
    import_module("matplotlib_inline.backend_inline")  # which would set a format of its own later
    get_ipython().display_formatter.formatters["image/png"].for_type(Figure, inline)


def style_of(method: str) -> dict:
    row = METHODS[method]
    return {"color": row.colour, "linestyle": "--" if row.dashed else "-", "label": row.label}


def lines(axes: Axes, data: DataFrame, x: str, y: str, **looks) -> None:
    """Means of y by x with a band around them, a line for each method that has any."""
    known = data.dropna(subset=y)
    if known.empty:
        return
    names = {method: label(method) for method in known["method"].unique()}
    looks |= {"palette": {names[method]: COLOURS[method] for method in names}}
    looks |= {"dashes": {names[method]: (3, 1.5) if method in DASHED else "" for method in names}}
    known = known.replace({"method": names}).astype({x: float, y: float})
    sns.lineplot(known, x=x, y=y, hue="method", style="method", ax=axes, err_kws={"alpha": 0.15, "lw": 0}, **looks)


def logarithmic(axes: Axes, subs: Sequence[float] = (1, 1.5, 2, 3, 4, 5, 7)) -> None:
    """A logarithmic scale with plain numbers beside it."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def with_paper(rows: DataFrame | None, metric: str = "error") -> list:
    """The rows of a comparison that have a number of the paper for this metric."""
    return [] if rows is None else list(rows[(rows.metric == metric) & rows.paper.notna()].itertuples())


def finish(axes: Axes, runs: Sequence[Run]) -> None:
    """The legend, if there are lines; where there is nothing to show, a word about it."""
    if not runs:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", va="center", color="0.4", fontsize=12)
        if not axes.lines:
            axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
    elif named := {name: handle for handle, name in reversed([*zip(*axes.get_legend_handles_labels(), strict=True)])}:
        axes.legend([*named.values()][::-1], [*named][::-1], ncols=2 if len(named) > 4 else 1)


def legend_below(figure: Figure, columns: int = 4, **looks: Any) -> Figure:
    """One legend for all panels, each name once, under them."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        named |= {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        if axes.get_legend():
            axes.get_legend().remove()
    if named:
        figure.legend(named.values(), named, loc="outside lower center", ncols=columns, handlelength=2.6, **looks)
    return figure
