"""Figures of how near attacks come to the true margin, from the stored measurements."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ammlib.report.measurements import Measured
from ammlib.report.style import AXES, COLOURS, style_of
from ammlib.report.tightness import ratios
from ammlib.training.recipes import label

LOOKS = {  # of attacks
    "deepfool": dict(color="#D55E00", linestyle="--", label="DeepFool"),
    "tight": dict(color="#0072B2", label="tight"),
    "tight, 100 steps": dict(color="#0072B2", linestyle=":", label="tight, 100 steps"),
    "DDN (foolbox)": dict(color="#E69F00", label="DDN, foolbox"),
    "FAB (adv-lib)": dict(color="#009E73", label="FAB, adv-lib"),
}
NETS = {"mlp": "MLP", "lenet": "LeNet"}


def draw_perturbations(axes: Axes, x: Tensor, deltas: Mapping[str, Tensor]) -> None:
    """Lines from points of the plane to where each attack takes them."""
    for attack, delta in deltas.items():
        style = {**LOOKS[attack], "linestyle": "-", "label": None}
        there = x + delta
        axes.plot(*torch.stack([x, there], 1).permute(2, 1, 0), linewidth=1.2, **style)
        axes.plot(*there.T, "o", markersize=4, color=style["color"], label=LOOKS[attack]["label"])
    axes.plot(*x.T, "o", markersize=4, color="black", label="inputs")
    axes.set_aspect("equal")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def ratios_to_best(measured: Measured) -> Figure:
    """Of each attack the share of images whose norm is at most so many times the best found, a panel for each net."""
    found = [(arch, method, one["compared"]) for arch, method, one in nets_of(measured)]
    figure, panels = plt.subplots(1, len(found), figsize=(7.2, 2.4), sharey=True, sharex=True, squeeze=False)
    for axes, (arch, method, compared) in zip(panels[0], found, strict=True):
        for attack, ratio in ratios(compared).items():
            axes.plot(ratio.sort().values, np.linspace(0, 100, len(ratio)), **LOOKS[attack])
        axes.set_title(f"{NETS[arch]}\n{label(method)}", fontsize=8)
        axes.set(xlim=(0.99, 1.55), xlabel="norm (× best)", ylim=(0, 102))
    panels[0, 0].set_ylabel("images with at most this (%)")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def margins_by_attack(measured: Measured) -> Figure:
    """Distributions of the margins of reference and regularised nets: DeepFool's dashed, the tight ones filled."""
    archs = measured["nets"]
    figure, panels = plt.subplots(1, len(archs), figsize=(7.2, 2.8), squeeze=False)
    for axes, (arch, net) in zip(panels[0], archs.items(), strict=True):
        largest = max(np.quantile(found["norms"]["deepfool"], 0.995) for found in net["methods"].values())
        bins = np.linspace(0, largest, 31)
        for method, found in net["methods"].items():
            style = style_of(method)
            values = {attack: np.clip(norms, 0, largest) for attack, norms in found["norms"].items()}
            axes.hist(values["tight"], bins, alpha=0.2, color=style["color"])
            axes.hist(values["tight"], bins, histtype="step", linewidth=1.5, color=style["color"])
            axes.hist(values["deepfool"], bins, histtype="step", linestyle="--", color=style["color"])
            axes.plot([], [], color=style["color"], label=style["label"])
        axes.set(title=NETS[arch], xlabel=AXES["margin"], ylabel="test images")
        axes.margins(x=0)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        title="filled: tight; dashed: DeepFool",
    )
    return figure


def robust_accuracy(measured: Measured) -> Figure:
    """Accuracy by radius: lines from the margins, the tight ones solid, DeepFool's dashed; dots from PGD."""
    archs = measured["nets"]
    figure, panels = plt.subplots(1, len(archs), figsize=(7.2, 2.8), sharey=True, squeeze=False)
    for axes, (arch, net) in zip(panels[0], archs.items(), strict=True):
        radius = np.linspace(0, max(measured["radii"]), 301)
        for method, found in net["methods"].items():
            colour, correct = COLOURS[method], np.array(found["correct"], dtype=bool)
            for attack, line in (("deepfool", "--"), ("tight", "-")):
                held = (np.array(found["norms"][attack])[correct] > radius[:, None]).sum(1) / len(correct)
                axes.plot(radius, 100 * held, line, color=colour, linewidth=1 if line == "--" else 1.5)
            axes.plot(measured["radii"], 100 * np.array(found["robust"]), "o", color=colour, markersize=4)
            axes.plot([], [], color=colour, label=label(method))
        axes.set(title=NETS[arch], xlabel="radius (pixel units, $l_2$)", xlim=(0, radius[-1]), ylim=(0, 101))
    panels[0, 0].set_ylabel("accuracy under attack (%)")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        title="solid: tight; dashed: DeepFool; dots: PGD",
    )
    return figure


def nets_of(measured: Measured) -> list[tuple[str, str, dict[str, Any]]]:
    """(arch, method, what was found) of all nets."""
    return [(arch, method, found) for arch, net in measured["nets"].items() for method, found in net["methods"].items()]
