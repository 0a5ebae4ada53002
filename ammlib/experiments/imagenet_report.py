"""What notebook 07 shows of the measurements on the sample of ImageNet: two tables and a figure."""

from statistics import mean, median
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from pandas import DataFrame

from ammlib.experiments.imagenet_sample import Sample
from ammlib.margin.margins import Margins
from ammlib.report.figures.images import margin_histogram
from ammlib.report.frame import published
from ammlib.report.style import COLOURS, finish
from ammlib.report.tables import aligned

NOT_MEASURED = "not measured; python -m ammlib sample {} --arch {}"


def quoted(metric: str) -> DataFrame:
    """The paper's numbers for the references of ImageNet, whoever trained them."""
    numbers = published()
    return numbers[(numbers.dataset == "imagenet") & (numbers.method == "reference") & (numbers.metric == metric)]


def paper(arch: str, metric: str) -> str:
    """The paper's number for the reference of this net."""
    return {p.arch: f"{p.value:.2f}" for p in quoted(metric).itertuples()}.get(arch.removesuffix("_caffe"), "")


def sample_table(arch: str, sample: Sample | None) -> str:
    """Error and margins of a pretrained net on the sample beside the paper's, which are of the validation set."""
    if sample is None or not sample.rows:
        return NOT_MEASURED.format("margins", arch)
    n, std, pixel = str(len(sample.rows)), sample.std, sample.pixel
    right = [m for m, row in zip(std, sample.rows, strict=True) if sample.predictions[row] == sample.labels[row]]
    (fooled,), steps = quoted("deepfool_success").itertuples(), quoted("deepfool_steps")
    rows = [
        ("", "images", "ours", "paper"),
        ("top-1 error (%)", str(len(sample.predictions)), f"{sample.error:.1f}", paper(arch, "error")),
        ("margin, mean (std units)", n, f"{mean(std):.2f}", paper(arch, "margin")),
        ("margin, median (std units)", n, f"{median(std):.2f}", ""),
        ("margin, mean of the correct (std units)", str(len(right)), f"{mean(right):.2f}" if right else "", ""),
        ("margin, mean (pixel units)", n, f"{mean(pixel):.3f}", ""),
        ("margin, median (pixel units)", n, f"{median(pixel):.3f}", ""),
        ("fooled within 6 steps (%)", n, f"{100 * mean(sample.success):.1f}", f"{fooled.value:.2f} ({fooled.arch})"),
        ("steps, mean", n, f"{mean(sample.steps):.1f}", " to ".join(f"{value:g}" for value in steps["value"])),
    ]
    return aligned(rows)


def fine_tuning_table(arch: str, tuning: dict[str, Any] | None) -> str:
    """The steps, and the margins of the images trained on, before the first and after the last."""
    if tuning is None:
        return NOT_MEASURED.format("fine_tuning", arch)
    cells: list[tuple[str, ...]] = [("step", "cross-entropy", "regulariser", "kept", "their margin (pixel units)")]
    for number, step in enumerate(tuning["steps"], 1):
        values = (step["loss"], step["regulariser"], step["kept"], step["margin"])
        cells.append((str(number), *("" if value is None else f"{value:.3g}" for value in values)))
    before, after = tuning["before"], tuning["after"]
    grown = sum(b < a for b, a in zip(before, after, strict=True))
    change = f"mean margin {mean(before):.3f} → {mean(after):.3f} (std units)"
    return aligned(cells, f"{change}, larger for {grown} of {len(before)} images")


def sample_figure(arch: str, sample: Sample | None, tuning: dict[str, Any] | None) -> Figure:
    """Left: margins of the pretrained net, with its mean and the paper's; right: those of images that it trained on."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), width_ratios=(3, 2))
    if sample is None or not sample.rows:
        finish(left, ())
    else:
        norm, found = torch.tensor(sample.std), torch.tensor(sample.success)
        margin_histogram(left, {"reference": Margins(norm, found, torch.tensor(sample.steps), None)}, "std units")
        if number := paper(arch, "margin"):
            left.axvline(float(number), color="0.5", linewidth=1)
            left.plot([], [], color="0.5", linewidth=1, label=f"the paper's mean, {number}")
            left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        left.set_ylabel("images of the sample")
    if tuning is None:
        finish(right, ())
    else:
        end = 1.05 * max(*tuning["before"], *tuning["after"])
        right.plot([0, end], [0, end], color="0.6", linewidth=1)
        right.plot(tuning["before"], tuning["after"], "o", color=COLOURS["amm"])
        right.set(xlabel="margin before (std units)", ylabel=f"after {len(tuning['steps'])} steps of AMM")
        right.set(xlim=(0, end), ylim=(0, end))
    return figure
