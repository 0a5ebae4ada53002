"""Figures of what the method costs, from the stored measurements."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from ammlib.report.cost import PAPER, PROMISE, exponent, screened_and_exact
from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS, Measured, net_label
from ammlib.report.style import COLOURS, logarithmic
from ammlib.training.runs import load_run

BLUE = COLOURS["amm"]
LOOKS = dict(  # MIN+EXP and AVG+EXP share a colour in all figures; AVG is dashed
    zip(
        ("plain", *VARIANTS),
        (
            dict(color=COLOURS["reference"], marker="s"),
            dict(color=BLUE, marker="o"),
            dict(color=BLUE, marker="o", markerfacecolor="white"),
            dict(color=BLUE, marker="^", linestyle="--"),
        ),
        strict=True,
    )
)
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
    figure, panels = plt.subplots(2, len(nets), figsize=(7.2, 4.0), sharex=True, sharey="row", squeeze=False)
    for row, (of, band) in zip(panels, PAPER.items(), strict=True):
        for axes, net in zip(row, nets, strict=True):
            axes.axhspan(*band, color="0.88", linewidth=0, label="paper, on its GPU")
            axes.axhline(1, **{**LOOKS["plain"], "marker": "", "linewidth": 1, "label": "plain cross-entropy"})
            for name in VARIANTS:
                axes.plot(steps["steps"], net[of][name], label=name, **LOOKS[name])
            ticks(axes, "y", (1, 2, 3, 6) if of == "time" else (1, 1.5, 2, 3, 4, 6))
        row[0].set_ylabel(f"{of} (× plain)")
    for axes, net in zip(panels[0], nets, strict=True):
        axes.set_title(f"{net_label(net).replace(', ', chr(10))}\n{net['misclassified']:.0%} wrong", fontsize=8)
    for axes in panels[1]:
        axes.set(xticks=[1, 3, 6], xlabel="iterations $u$")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, columnspacing=1)
    return figure


def cost_parts(steps: Measured) -> Figure:
    """Where the time of a step with six iterations goes: a bar for each net and variant, in units of a plain step."""
    nets, width = list(steps["nets"].values()), 0.27
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    for k, name in enumerate(VARIANTS):
        at, bottom = np.arange(len(nets)) + (k - 1) * (width + 0.03), np.zeros(len(nets))
        for part, colour in SHADES.items():
            height = np.array([max(0.0, net["parts_ms"][name][part]) / net["plain_ms"] for net in nets])
            axes.bar(
                at, height, width, bottom, color=colour, label=None if k else part, edgecolor="white", linewidth=0.5
            )
            bottom += height
        for x, top in zip(at, bottom, strict=True):
            axes.text(
                x,
                top,
                f" {name.replace('MIN + EXP, ', '').replace(' + EXP', '')}",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
            )
    axes.set_xticks(range(len(nets)), [net_label(net).replace(", ", "\n") for net in nets])
    axes.set(ylabel="time of a step (× plain cross-entropy)")
    axes.margins(y=0.14)
    axes.grid(False, axis="x")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.14), ncols=4)
    return figure


def cost_growth(growth: Measured) -> Figure:
    """Time of a step over what grows, on log-log scales; beside each line the exponent that fits it best."""
    everything = {name: net for name, net in growth["nets"].items() if len(net) == len(QUANTITIES)}
    nets = everything or growth["nets"]
    figure, panels = plt.subplots(len(nets), len(QUANTITIES), figsize=(7.2, 1.9 * len(nets) + 0.5), squeeze=False)
    for row, (arch, net) in zip(panels, nets.items(), strict=True):
        for axes, quantity in zip(row, QUANTITIES, strict=True):
            axes.set_visible(quantity in net)
            if quantity not in net:
                continue
            draw_growth(axes, growth["values"][quantity], net[quantity])
            axes.set_xlabel(QUANTITIES[quantity])
        row[0].set_ylabel(f"{net_label({'arch': arch, 'dataset': 'mnist'})}\ntime of a step (ms)")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_growth(axes: Axes, values: list[float], times: dict[str, list[float]]) -> None:
    """Times over values, with their exponents at the right."""
    axes.set(xscale="log", yscale="log")
    for name, look in LOOKS.items():
        axes.plot(values, times[name], label=name, **{**look, "markersize": 3, "linewidth": 1.2})
    shown = spaced(np.log([times[name][-1] for name in LOOKS]))
    for name, height in zip(LOOKS, np.exp(shown), strict=True):
        text = f"{exponent(values, times[name]):.2f}"
        place = axes.get_yaxis_transform()
        axes.text(1.02, height, text, color=LOOKS[name]["color"], transform=place, va="center", fontsize=7)
    labels = values if len(values) < 4 else values[::2]
    axes.set_xticks(labels, [f"{value:g}" for value in labels])
    axes.xaxis.set_minor_locator(NullLocator())
    ticks(axes, "y", (1, 2, 5))


def spaced(heights: np.ndarray, least: float = 0.28) -> np.ndarray:
    """The heights moved apart upwards where two labels would touch."""
    moved = np.array(heights, dtype=float)
    order = np.argsort(moved)
    for below, above in zip(order, order[1:], strict=False):
        moved[above] = max(moved[above], moved[below] + least)
    return moved


def ticks(axes: Axes, which: str, subs: tuple[int, ...]) -> None:
    """A logarithmic axis with plain numbers."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def screening_course(net: Measured) -> Figure:
    """Along a training run: whom screening follows, what it misses so far, and the test errors with and without it."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.2, 2.7))
    step, share = np.array(net["step"]), 100 / net["batch"]
    left.plot(step, share * np.array(net["attacked"]), color=BLUE, linewidth=1, label="followed for a step or more")
    left.plot(step, share * np.array(net["misclassified"]), color="0.5", linewidth=1, label="misclassified")
    left.set(ylabel="share of a batch (%)", ylim=(0, 105))
    cosines = np.array([1.0 if cosine is None else cosine for cosine in net["cosine"]])  # None: both are zero
    missed = {
        "found": ("selections missed", BLUE, 1 - np.cumsum(net["found"]) / np.cumsum(net["exact"])),
        "mean cosine": ("1 − gradient cosine", "#D55E00", np.cumsum(1 - cosines) / np.arange(1, len(step) + 1)),
    }
    for width, (name, (label, colour, values)) in zip((3.5, 1.5), missed.items(), strict=True):  # both may be zero
        middle.plot(step, 100 * values, color=colour, linewidth=width, label=label)
        middle.axhline(100 * (1 - PROMISE[name]), color=colour, linestyle=":")
    middle.text(0, 100 * (1 - PROMISE["found"]), "promised at most", color=BLUE, va="bottom", fontsize=7)
    middle.text(0, 100 * (1 - PROMISE["mean cosine"]), "promised at most", color="#D55E00", va="bottom", fontsize=7)
    middle.set(ylabel="so far (%)", ylim=(-0.02, 0.62))
    for axes in (left, middle):
        axes.set_xlabel("training step")
        axes.xaxis.set_major_formatter(lambda at, _: f"{at / 1000:g}k")
    for name, recipe in screened_and_exact(net["dataset"], net["arch"], **net["changes"]).items():
        if run := load_run(recipe, 0):
            errors = [entry["test_error"] for entry in run.history]
            right.plot([entry["epoch"] for entry in run.history], errors, label=name, **LOOKS[f"MIN + EXP, {name}"])
    right.set(xlabel="epoch", ylabel="test error (%)")
    logarithmic(right)
    for axes in (left, middle, right):
        axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1))
    return figure


def attack_times(deepfool: Measured) -> Figure:
    """Seconds of the three DeepFools, a panel for each net, their mean norm beside the bars."""
    nets, height = deepfool["nets"], 0.4
    figure, panels = plt.subplots(1, len(nets), figsize=(7.2, 2.1), squeeze=False)
    for axes, (arch, net) in zip(panels[0], nets.items(), strict=True):
        names = list(net["mean_norm"])[::-1]
        for (state, times), shift, alpha in zip(
            net["seconds"].items(), (height / 2, -height / 2), (1, 0.5), strict=True
        ):
            for y, name in enumerate(names):
                color = BLUE if name == "ammlib" else "0.5"
                axes.barh(y + shift, times[name], height, color=color, alpha=alpha)
                axes.text(times[name], y + shift, f" {times[name]:.2f} s, {state}", va="center", fontsize=7)
        axes.set_yticks(range(len(names)), [f"{n.replace('_', '-')}\nnorm {net['mean_norm'][n]:.3f}" for n in names])
        axes.set_xlim(0, 1.6 * max(max(times.values()) for times in net["seconds"].values()))
        axes.set(
            title=net_label({"arch": arch, "dataset": "mnist"}), xlabel=f"time of {deepfool['samples']} images (s)"
        )
        axes.grid(False, axis="y")
    return figure
