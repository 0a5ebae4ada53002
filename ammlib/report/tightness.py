"""How near attacks come to the true margin, from the stored measurements: what follows from them, and as text."""

import math
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ammlib.report.measurements import Measured
from ammlib.report.tables import aligned
from ammlib.training.recipes import label

SHOWN_RADII = (0.5, 1.0, 2.0)  # of many


class Nearness(NamedTuple):
    """One attack beside the best of all, over the images where it found a point."""

    norm: float  # mean
    ratio: float  # to the least norm that any attack found, mean
    largest: float  # of these ratios
    lost: int  # images without a point
    rank: float  # Spearman's correlation with the least norms
    slower: float  # than DeepFool


def nearness(compared: dict[str, Any]) -> dict[str, Nearness]:
    """Every attack that was measured, by name."""
    norms = all_norms(compared)
    best, found = least(norms), {}
    for attack, norm in norms.items():
        ok = norm.isfinite()
        ratio, slower = (norm / best)[ok], compared["seconds"][attack] / compared["seconds"]["deepfool"]
        means = float(norm[ok].mean()), float(ratio.mean()), float(ratio.max())
        found[attack] = Nearness(*means, int((~ok).sum()), rank_correlation(norm, best), slower)
    return found


def ratios(compared: dict[str, Any]) -> dict[str, Tensor]:
    """Of each attack its norms divided by the smallest that any attack found for the same image."""
    norms = all_norms(compared)
    best = least(norms)
    return {attack: norm / best for attack, norm in norms.items()}


def all_norms(compared: dict[str, Any]) -> dict[str, Tensor]:
    """By attack, infinite where no point was found."""
    stored = compared["norms"].items()
    return {
        attack: torch.tensor([math.inf if n is None else n for n in found], dtype=torch.float64)
        for attack, found in stored
    }


def least(norms: dict[str, Tensor]) -> Tensor:
    """The smallest norm that any attack found for each image."""
    return torch.stack(list(norms.values())).amin(0)


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def tightness(measured: Measured) -> str:
    """Norms beside the best that any attack found, the ranking, and the time beside DeepFool's."""
    rows = [("net", "method", "attack", "mean norm", "x best", "at most", "rank correlation", "x DeepFool's time")]
    for arch, net in measured["nets"].items():
        for method, found in net["methods"].items():
            for attack, c in nearness(found["compared"]).items():
                most = f"{c.largest:.2f}" + (f", {c.lost} not found" if c.lost else "")
                numbers = (f"{c.norm:.3f}", f"{c.ratio:.3f}", most, f"{c.rank:.3f}", f"{c.slower:.1f}")
                rows.append((arch, label(method), attack, *numbers))
    return aligned(rows)


def enlarged(measured: Measured) -> str:
    """By how much training for it enlarged the margin, by DeepFool and by the tight attack; accuracy under PGD."""
    shown = [radius for radius in SHOWN_RADII if radius in measured["radii"]] or measured["radii"]
    radii = [measured["radii"].index(radius) for radius in shown]
    at = (f"PGD, r={radius:g}" for radius in shown)
    rows = [("net", "method", "DeepFool", "x reference", "tight", "x reference", "DeepFool / tight", *at)]
    for arch, net in measured["nets"].items():
        means = {method: mean_margins(found) for method, found in net["methods"].items()}
        for method, found in net["methods"].items():
            loose, near = means[method]
            grown = (value / before for value, before in zip(means[method], means["reference"], strict=True))
            by_deepfool, by_tight = (f"{ratio:.2f}" for ratio in grown)
            numbers = (f"{loose:.3f}", by_deepfool, f"{near:.3f}", by_tight, f"{loose / near:.2f}")
            rows.append((arch, label(method), *numbers, *(f"{found['robust'][i]:.0%}" for i in radii)))
    return aligned(rows)


def right_and_wrong(measured: Measured) -> str:
    """Mean margins of the correctly classified and of the misclassified images apart."""
    rows = [("net", "method", "images", "n", "DeepFool", "tight")]
    for arch, net in measured["nets"].items():
        for method, found in net["methods"].items():
            for name, wanted in (("correct", 1), ("misclassified", 0)):
                norms = {
                    attack: [m for m, correct in zip(values, found["correct"], strict=True) if correct == wanted]
                    for attack, values in found["norms"].items()
                }
                means = (f"{fmean(values):.3f}" if values else "" for values in norms.values())
                rows.append((arch, label(method), name, str(len(norms["tight"])), *means))
    return aligned(rows)


def mean_margins(found: Measured) -> tuple[float, float]:
    """Of a net: DeepFool's and the tight one."""
    return fmean(found["norms"]["deepfool"]), fmean(found["norms"]["tight"])
