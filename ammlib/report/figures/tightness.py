"""Figures of how near attacks come to the true margin, from the stored measurements."""

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ammlib.report.measurements import Measured
from ammlib.report.style import ATTACKS, AXES, COLOURS, legend_below
from ammlib.report.tightness import ratios
from ammlib.training.recipes import label

NETS = {"mlp": "MLP", "lenet": "LeNet", "resnet20": "ResNet-20"}
LINES = {"deepfool": "--", "tight": "-"}


def draw_perturbations(axes: Axes, x: Tensor, deltas: Mapping[str, Tensor]) -> None:
    """Lines from points of the plane to where each attack takes them."""
    for attack, delta in deltas.items():
        there = x + delta
        axes.plot(*torch.stack([x, there], 1).permute(2, 1, 0), linewidth=1.2, color=ATTACKS[attack])
        axes.plot(*there.T, "o", color=ATTACKS[attack], label=attack)
    axes.plot(*x.T, "o", color="black", label="inputs")
    axes.set_aspect("equal")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def ratios_to_best(measured: Measured) -> Figure:
    """Of each attack the share of images whose norm is at most so many times the best found, a panel for each net."""
    compared = {
        f"{NETS[arch]}, {label(method)}": found["compared"]
        for arch, net in measured["nets"].items()
        for method, found in net["methods"].items()
    }
    rows, shown = math.ceil(len(compared) / 3), 1.55
    figure, panels = plt.subplots(rows, 3, figsize=(8.6, 2.4 * rows + 0.5), sharex=True, sharey=True, squeeze=False)
    for axes, (name, found) in zip(panels.flat, compared.items(), strict=False):
        for attack, ratio in ratios(found).items():
            values = ratio.clamp(max=2 * shown).numpy()  # infinite where nothing was found
            sns.ecdfplot(x=values, stat="percent", color=ATTACKS[attack], label=attack, ax=axes)
        axes.set(title=name, xlim=(0.99, shown), xlabel="norm (× best)", ylabel="images with at most this (%)")
        axes.label_outer()
    return legend_below(figure, columns=5)


def margins_by_attack(measured: Measured) -> Figure:
    """Distributions of the margins of reference and regularised nets: DeepFool's dashed, the tight ones filled."""
    figure, panels = plt.subplots(1, len(measured["nets"]), figsize=(8.6, 3.2), squeeze=False)
    for axes, (arch, net) in zip(panels[0], measured["nets"].items(), strict=True):
        norms = {attack: {m: found["norms"][attack] for m, found in net["methods"].items()} for attack in LINES}
        largest = max(np.quantile(values, 0.995) for values in norms["deepfool"].values())
        bins = np.linspace(0, largest, 31)
        for attack, line in LINES.items():
            values = {method: np.clip(found, 0, largest) for method, found in norms[attack].items()}
            looks = {"alpha": 0.15 if attack == "tight" else 1, "fill": attack == "tight", "linestyle": line}
            sns.histplot(values, bins=bins, element="step", palette=COLOURS, legend=False, ax=axes, **looks)
        name_methods(axes, arch, net)
        axes.set(xlabel=AXES["margin"], ylabel="test images")
        axes.margins(x=0)
    return legend_below(figure, title="filled: tight; dashed: DeepFool")


def robust_accuracy(measured: Measured) -> Figure:
    """Accuracy by radius: lines from the margins, the tight ones solid, DeepFool's dashed; dots from PGD."""
    figure, panels = plt.subplots(1, len(measured["nets"]), figsize=(8.6, 3.2), sharey=True, squeeze=False)
    for axes, (arch, net) in zip(panels[0], measured["nets"].items(), strict=True):
        for method, found in net["methods"].items():
            for attack, line in LINES.items():
                held = np.where(found["correct"], found["norms"][attack], 0)  # a wrong one is not held at any radius
                looks = {"color": COLOURS[method], "linestyle": line, "linewidth": 1 if line == "--" else 1.5}
                sns.ecdfplot(x=held, complementary=True, stat="percent", ax=axes, **looks)
            axes.plot(measured["radii"], 100 * np.array(found["robust"]), "o", color=COLOURS[method])
        name_methods(axes, arch, net)
        axes.set(xlabel="radius (pixel units, $l_2$)", ylabel="accuracy under attack (%)")
        axes.set(xlim=(0, max(measured["radii"])), ylim=(0, 101))
        axes.label_outer()
    return legend_below(figure, title="solid: tight; dashed: DeepFool; dots: PGD")


def name_methods(axes: Axes, arch: str, net: Measured) -> None:
    """The net as title, and its methods for the legend."""
    axes.set_title(NETS[arch])
    for method in net["methods"]:
        axes.plot([], [], color=COLOURS[method], label=label(method))
