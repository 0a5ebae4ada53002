"""Who enlarges the margin: the systems that the paper compares with, beside AMM, as a table and a figure."""

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from pandas import DataFrame

from ammlib.report.frame import compare, published
from ammlib.report.style import AXES, style_of
from ammlib.report.tables import Table, aligned, named, number


def summary(measured: dict[str, Any]) -> DataFrame:
    """One row for each net and method of the study: means over the seeds, and what was measured of seed 0.

    Columns: arch, method, `published` (its error in the paper, if that is of this net), `error` in % and `margin`
    (DeepFool's, of all test images) with `error_std` and `margin_std`, `deepfool` and `tight` (margins of the first
    images), `ms` of a training step, `robust` accuracies in %.
    """
    found, place = compare("systems"), ["arch", "method"]
    ours, std = (found.pivot_table(value, place, "metric", sort=False, dropna=False) for value in ("ours", "std"))
    stated = errors_published().rename(columns={"value": "published"})[[*place, "published"]]
    rows = ours.join(std.add_suffix("_std")).reset_index().merge(stated, how="left", on=place)
    nets = {arch: net["methods"] for arch, net in measured.get("nets", {}).items()}
    known = [nets.get(row.arch, {}).get(row.method, {}) for row in rows.itertuples()]
    for name in ("deepfool", "tight", "ms"):
        rows[name] = [one.get(name, math.nan) for one in known]
    rows["robust"] = [[100 * share for share in one.get("robust", [])] for one in known]
    return rows


def errors_published() -> DataFrame:
    """The paper's errors on MNIST, its own and quoted ones, one for each net and method."""
    stated = published().query("dataset == 'mnist' and metric == 'error' and condition == '' and bound == ''")
    return stated.drop_duplicates(["arch", "method"], keep="last")


def table(measured: dict[str, Any]) -> Table:
    """The summary in words; empty where nothing has run."""
    rows, radii = summary(measured), [f"PGD {radius:g}" for radius in measured.get("radii", [])]
    header = ("net", "method", "published %", "error %", "margin", "tight", *radii, "ms a step", "x plain")
    plain = rows[rows.method == "reference"].set_index("arch")["ms"]
    cells = [header]
    for row in rows.itertuples():
        robust = [f"{share:.0f}" for share in row.robust] or [""] * len(radii)
        ours = number(row.error, row.error_std), number(row.margin, row.margin_std), number(row.tight)
        times = number(row.ms), number(row.ms / plain[row.arch])
        cells.append((row.arch, named(row.method), number(row.published), *ours, *robust, *times))
    quoted = errors_published().query("competitor")
    elsewhere = quoted[~quoted.arch.isin(rows.arch)].itertuples()
    others = (f"{named(row.method)} {number(row.value)} % ({row.arch}; {row.note})" for row in elsewhere)
    return aligned(cells, "published of other nets: " + ", ".join(others))


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
