"""The figure of who enlarges the margin: error against margin, a named point for each method."""

import math
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from pandas import DataFrame

from ammlib.report.style import AXES, COLOURS, finish, logarithmic
from ammlib.report.systems import short, summary

AWAY = (6, 12, 20, 30, 42)  # points of a name from its point
AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))  # to which side: right, up


def error_against_margin(measured: dict[str, Any]) -> Figure:
    """One named point for each method that has run, on nets where one has; further right and down is better."""
    rows = summary(measured).dropna(subset=["error", "margin"])
    ran = [(arch, own) for arch, own in rows.groupby("arch", sort=False) if {*own.method} != {"reference"}]
    columns = max(1, len(ran))
    figure, panels = plt.subplots(1, columns, figsize=(4.8 * columns, 4.4), squeeze=False)
    for axes, (arch, own) in zip(panels[0], ran, strict=False):
        draw_points(axes, own)
        axes.set(title=arch, xlabel=AXES["margin"], ylabel=AXES["test_error"])
    if not ran:
        finish(panels[0][0], [])
        return figure
    black = {"color": "0.2", "linestyle": ""}
    handles = [
        Line2D([], [], marker="o", label="margin by DeepFool", **black),
        Line2D([], [], marker="o", markerfacecolor="white", label="by the tight attack", **black),
        Line2D([], [], marker="_", markersize=9, label="published error, same net", **black),
        Line2D([], [], color="0.5", linestyle=":", label="the reference"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    figure.draw_without_rendering()  # from here on the axes stay where they are
    for axes, (_, own) in zip(panels[0], ran, strict=True):
        name_points(axes, own)
    return figure


def draw_points(axes: Axes, rows: DataFrame) -> None:
    """Filled by DeepFool's margin, open by the tight one, a dash at the published error; lines at the reference's."""
    for plain in rows[rows.method == "reference"].itertuples():
        axes.axvline(plain.margin, color="0.5", linestyle=":", linewidth=1)
        axes.axhline(plain.error, color="0.5", linestyle=":", linewidth=1)
        words = "larger margin, lower error"
        axes.text(0.99, 0.01, words, transform=axes.transAxes, ha="right", style="italic", color="0.5", fontsize=7)
    for row in rows.itertuples():
        look = {"color": COLOURS[row.method]}
        axes.plot([row.margin, row.tight], [row.error] * 2, linewidth=0.8, alpha=0.6, **look)
        axes.plot([row.margin] * 2, [row.error, row.published], linewidth=0.6, alpha=0.6, **look)
        axes.plot(row.tight, row.error, "o", markerfacecolor="white", **look)
        axes.plot(row.margin, row.published, "_", markersize=9, **look)
        axes.plot(row.margin, row.error, "o", **look)
    logarithmic(axes, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
    axes.margins(x=0.14, y=0.12)


def name_points(axes: Axes, rows: DataFrame) -> None:
    """Write the method beside each point: near it, and where it covers neither points nor names, and lines hardly."""
    pixel, inside = axes.figure.dpi / 72, axes.get_window_extent()
    lines = {line: line.get_window_extent() for line in axes.lines}
    drawn = {line: box for line, box in lines.items() if math.isfinite(box.width)}  # what was measured
    strokes = [box for line, box in drawn.items() if line.get_marker() == "None"]
    marks = [text.get_window_extent() for text in axes.texts]
    marks += [box for line, box in drawn.items() if line.get_marker() != "None"]
    for row in rows.sort_values("error", ascending=False).itertuples():
        leader = {"arrowstyle": "-", "linewidth": 0.5, "color": COLOURS[row.method], "shrinkA": 0, "shrinkB": 2}
        looks = {"textcoords": "offset points", "va": "bottom", "fontsize": 7, "color": "0.15", "in_layout": False}
        words = axes.annotate(short(row.method), (row.margin, row.error), (0, 0), arrowprops=leader, **looks)
        box, point = words.get_window_extent(), axes.transData.transform((row.margin, row.error))
        width, height = box.size / pixel
        best = (math.inf, box, (0.0, 0.0), True)
        for far, (right, up) in product(AWAY, AROUND):
            place = (right * far + (right - 1) * width / 2, up * far + (up - 1) * height / 2)
            there = box.translated(*(pixel * offset for offset in place))
            line = Path([point, (there.min + there.max) / 2])
            covered = there.count_overlaps(marks) + 4 - inside.count_contains(there.corners())
            crossed = sum(line.intersects_bbox(mark, filled=False) for mark in marks)
            cost = 9 * covered + 3 * there.count_overlaps(strokes) + 4 * crossed + far / 6
            best = min(best, (cost, there, place, far == AWAY[0] and not right * up), key=lambda found: found[0])
        _, there, place, beside = best
        words.set_position(place)
        words.arrow_patch.set_visible(not beside)  # where it is plain whose name it is
        marks.append(there)
