"""Who enlarges the margin: the systems that the paper compares with, beside AMM, as a table and a figure."""

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from pandas import DataFrame

from ammlib.report.frame import compare, published
from ammlib.report.style import AXES, style_of
from ammlib.report.tables import Table, aligned, named, number

QUOTED = {"dlsvm_noise": "dlsvm"}  # the published DLSVM has Gaussian noise


def summary(measured: dict[str, Any]) -> DataFrame:
    """One row for each net and method of the study: means over the seeds, and what was measured of seed 0.

    Columns: arch, method, `published` (its error on its own net), `error` in %, `margin` (DeepFool's, of all test
    images), `deepfool` and `tight` (margins of the first of them), `ms` of a training step, `robust` accuracies in %.
    """
    rows = compare("systems").pivot_table("ours", ["arch", "method"], "metric", sort=False, dropna=False).reset_index()
    quoted = published().query("competitor and dataset == 'mnist' and metric == 'error'")
    rows["published"] = rows.method.replace(QUOTED).map(quoted.groupby("method")["value"].min())
    nets = {arch: net["methods"] for arch, net in measured.get("nets", {}).items()}
    found = [nets.get(row.arch, {}).get(row.method, {}) for row in rows.itertuples()]
    for name in ("deepfool", "tight", "ms"):
        rows[name] = [one.get(name, math.nan) for one in found]
    rows["robust"] = [[100 * share for share in one.get("robust", [])] for one in found]
    return rows


def table(measured: dict[str, Any]) -> Table:
    """The summary in words; empty where nothing has run."""
    rows, radii = summary(measured), [f"PGD {radius:g}" for radius in measured.get("radii", [])]
    header = ("net", "method", "published %", "error %", "margin", "tight", *radii, "ms a step", "x plain")
    plain = rows[rows.method == "reference"].set_index("arch")["ms"]
    cells = [header]
    for row in rows.itertuples():
        robust = [f"{share:.0f}" for share in row.robust] or [""] * len(radii)
        values = [number(value) for value in (row.published, row.error, row.margin, row.tight)]
        cells.append((row.arch, named(row.method), *values, *robust, number(row.ms), number(row.ms / plain[row.arch])))
    return aligned(cells)


def error_against_margin(measured: dict[str, Any]) -> Figure:
    """One point for each method: filled DeepFool's margin, open the tight one; ticks: its published error elsewhere."""
    rows = summary(measured)
    archs = list(rows.arch.unique())
    figure, panels = plt.subplots(1, len(archs), figsize=(4.6 * len(archs), 4.2), squeeze=False)
    for axes, arch in zip(panels[0], archs, strict=True):
        for row in rows[(rows.arch == arch) & rows.error.notna()].itertuples():
            look = style_of(row.method)
            axes.plot(row.margin, row.error, "o", color=look["color"], label=look["label"])
            if row.tight == row.tight:  # measured
                axes.plot(row.tight, row.error, "o", color=look["color"], markerfacecolor="none")
            if row.published == row.published:  # there is one
                axes.plot(row.margin, row.published, "_", color=look["color"])
        axes.set(title=arch, xlabel=AXES["margin"], ylabel=AXES["test_error"])
    handles = {
        label: handle for axes in panels[0] for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize=7)
    return figure
