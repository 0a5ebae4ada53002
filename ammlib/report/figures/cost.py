"""Figures of what the method costs, from the stored measurements."""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from pandas import DataFrame

from ammlib.report.cost import PAPER, PROMISE, screened_and_exact
from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS, Measured, net_label
from ammlib.report.style import COLOURS, legend_below, logarithmic
from ammlib.training.runs import load_run

BLUE = COLOURS["amm"]
STEPS = ("plain", *VARIANTS)
LOOKS = {  # MIN+EXP and AVG+EXP share a colour in all figures; AVG is dashed
    "hue": "step",
    "style": "step",
    "palette": dict(zip(STEPS, (COLOURS["reference"], BLUE, BLUE, BLUE), strict=True)),
    "dashes": dict(zip(STEPS, ("", "", (1, 1), (3, 1.5)), strict=True)),
    "markers": dict(zip(STEPS, ("s", "o", "D", "^"), strict=True)),
}
SHADES = dict(zip(PARTS_OF_STEP, (COLOURS["reference"], "#C6DDEC", "#7FB3D5", BLUE), strict=True))
QUANTITIES = {
    "batch": "batch (images)",
    "classes": "classes",
    "misclassified": "share misclassified",
    "u": "iterations $u$",
}


def cost_ratios(steps: Measured) -> Figure:
    """Time and memory of a step over the iterations, a column for each net, the paper's range as a band."""
    nets = list(steps["nets"].values())
    figure, panels = plt.subplots(2, len(nets), figsize=(8.6, 4.4), sharex=True, sharey="row", squeeze=False)
    for row, (of, band) in zip(panels, PAPER.items(), strict=True):
        for axes, net in zip(row, nets, strict=True):
            axes.axhspan(*band, color="0.88", linewidth=0, label="paper, on its GPU")
            axes.axhline(1, color=COLOURS["reference"], linewidth=1, label="plain cross-entropy")
            draw_steps(axes, steps["steps"], net[of])
            logarithmic(axes, (1, 2, 3, 6) if of == "time" else (1, 1.5, 2, 3, 4, 6))
            axes.set(xticks=[1, 3, 6], xlabel="iterations $u$", ylabel=f"{of} (× plain)")
            axes.label_outer()
    for axes, net in zip(panels[0], nets, strict=True):
        axes.set_title(f"{net_label(net).replace(', ', chr(10))}\n{net['misclassified']:.0%} wrong", fontsize=8)
    return legend_below(figure, columns=5, columnspacing=1)


def draw_steps(axes: Axes, values: list[float], found: dict[str, list[float]]) -> None:
    """What was found of each kind of step, over some values."""
    data = DataFrame(found, index=values).melt(ignore_index=False, var_name="step", value_name="found")
    sns.lineplot(data, x=data.index, y="found", ax=axes, markeredgewidth=0, **LOOKS)


def cost_parts(steps: Measured) -> Figure:
    """Where the time of a step with six iterations goes: a bar for each net and variant, in units of a plain step."""
    nets = list(steps["nets"].values())
    figure, axes = plt.subplots(figsize=(8.6, 3.4))
    for k, name in enumerate(VARIANTS):
        at, bottom = np.arange(len(nets)) + 0.3 * (k - 1), np.zeros(len(nets))
        for part, colour in SHADES.items():
            height = np.array([max(0.0, net["parts_ms"][name][part]) / net["plain_ms"] for net in nets])
            looks = {"color": colour, "edgecolor": "white", "linewidth": 0.5, "label": None if k else part}
            bars = axes.bar(at, height, 0.27, bottom, **looks)
            bottom += height
        short = name.replace("MIN + EXP, ", "").replace(" + EXP", "")
        axes.bar_label(bars, [short] * len(nets), rotation=90, padding=2, fontsize=7)
    axes.set_xticks(range(len(nets)), [net_label(net).replace(", ", "\n") for net in nets])
    axes.set(ylabel="time of a step (× plain cross-entropy)")
    axes.margins(y=0.14)
    axes.grid(False, axis="x")
    return legend_below(figure)


def cost_growth(growth: Measured) -> Figure:
    """Time of a step over what grows, on log-log scales."""
    nets = {name: net for name, net in growth["nets"].items() if len(net) == len(QUANTITIES)} or growth["nets"]
    figure, panels = plt.subplots(len(nets), len(QUANTITIES), figsize=(8.6, 2.2 * len(nets) + 0.5), squeeze=False)
    for row, (arch, net) in zip(panels, nets.items(), strict=True):
        for axes, quantity in zip(row, QUANTITIES, strict=True):
            axes.set_visible(quantity in net)
            if quantity in net:
                values = growth["values"][quantity]
                draw_steps(axes, values, net[quantity])
                axes.set(xscale="log", xlabel=QUANTITIES[quantity], ylabel="")
                axes.set_xticks(values[:: 1 if len(values) < 4 else 2])
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_locator(NullLocator())
                logarithmic(axes, (1, 2, 5))
        row[0].set_ylabel(f"{net_label({'arch': arch, 'dataset': 'mnist'})}\ntime of a step (ms)")
    return legend_below(figure)


def screening_course(net: Measured) -> Figure:
    """Along a training run: whom screening follows, what it misses so far, and the test errors with and without it."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(8.6, 3))
    step, share = np.array(net["step"]), 100 / net["batch"]
    left.plot(step, share * np.array(net["attacked"]), color=BLUE, linewidth=1, label="followed for a step or more")
    left.plot(step, share * np.array(net["misclassified"]), color="0.5", linewidth=1, label="misclassified")
    left.set(ylabel="share of a batch (%)", ylim=(0, 105))
    cosines = np.array([1.0 if cosine is None else cosine for cosine in net["cosine"]])  # None: both are zero
    missed = {
        "found": ("selections missed", BLUE, 1 - np.cumsum(net["found"]) / np.cumsum(net["exact"])),
        "mean cosine": ("1 − gradient cosine", "0.5", np.cumsum(1 - cosines) / np.arange(1, len(step) + 1)),
    }
    for width, (name, (label, colour, values)) in zip((3.5, 1.5), missed.items(), strict=True):  # both may be zero
        middle.plot(step, 100 * values, color=colour, linewidth=width, label=label)
        promised = 100 * (1 - PROMISE[name])
        middle.axhline(promised, color=colour, linestyle=":")
        middle.text(0, promised + 0.005, "promised at most", color=colour, va="bottom", fontsize=7)
    middle.set(ylabel="so far (%)", ylim=(-0.02, 0.62))
    for axes in (left, middle):
        axes.set_xlabel("training step")
        axes.xaxis.set_major_formatter(lambda at, _: f"{at / 1000:g}k")
    runs = {
        name: load_run(recipe, 0)
        for name, recipe in screened_and_exact(net["dataset"], net["arch"], **net["changes"]).items()
    }
    for (name, run), line in zip(runs.items(), ("-", ":"), strict=True):
        if run:
            errors = [entry["test_error"] for entry in run.history]
            right.plot([entry["epoch"] for entry in run.history], errors, line, color=BLUE, marker="o", label=name)
    right.set(xlabel="epoch", ylabel="test error (%)")
    logarithmic(right)
    for axes in (left, middle, right):
        axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1))
    return figure


def attack_times(deepfool: Measured) -> Figure:
    """Seconds of the three DeepFools, a panel for each net, their mean norm beside the bars."""
    figure, panels = plt.subplots(1, len(deepfool["nets"]), figsize=(8.6, 2.4), squeeze=False)
    for axes, (arch, net) in zip(panels[0], deepfool["nets"].items(), strict=True):
        data = DataFrame(net["seconds"]).melt(ignore_index=False, var_name="parameters", value_name="seconds")
        data.index = [f"{name.replace('_', '-')}\nnorm {net['mean_norm'][name]:.3f}" for name in data.index]
        sns.barplot(data, x="seconds", y=data.index, hue="parameters", palette=("0.35", "0.7"), ax=axes)
        for bars in axes.containers:
            axes.bar_label(bars, fmt=" %.2f s", fontsize=7)
        axes.set(title=net_label({"arch": arch, "dataset": "mnist"}), ylabel="")
        axes.set(xlabel=f"time of {deepfool['samples']} images (s)")
        axes.margins(x=0.15)
        axes.grid(False, axis="y")
    return legend_below(figure, title="parameters")
