"""Stored measurements, results/bench/*.json: where they are, what is in them, and on what and how they were made."""

import json
import math
from pathlib import Path
from textwrap import fill
from typing import Any

from ammlib.data.files import stored_results
from ammlib.training.recipes import BY_DATASET, make_recipe
from ammlib.training.runs import results_root

Measured = dict[str, Any]  # one file
# What each changes of the recipe's MIN + EXP; AVG counts all samples, so it cannot be screened.
VARIANTS: dict[str, dict[str, Any]] = {
    "MIN + EXP, screened": {},
    "MIN + EXP, exact": {"screen": None},
    "AVG + EXP": {"aggregation": "avg"},
}
PARTS_OF_STEP = ("cross-entropy", "screening", "trajectories", "double backward")


def path_of(part: str, folder: Path | None = None) -> Path:
    return (folder or results_root() / "bench") / f"{part}.json"


def load(part: str, folder: Path | None = None) -> Measured:
    """What was measured of a part: that in the folder if there is, otherwise what is stored with the package."""
    for path in (path_of(part, folder), path_of(part), path_of(part, stored_results() / "bench")):
        if path.exists():
            return json.loads(path.read_text("utf-8"))
    raise FileNotFoundError(
        f"{path} is missing; `python -m ammlib bench --parts {part} --output {path.parent}` makes it"
    )


def about(measured: Measured) -> str:
    """On what and how it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    return f"{measured['machine']}; {versions}\n{fill(measured['method'], 110)}"


def net_label(net: Measured) -> str:
    """Such as "LeNet, CIFAR-10"; a net that has converged says so."""
    names = {"mlp": "MLP", "lenet": "LeNet", "liunet": "LiuNet", "resnet20": "ResNet-20", "densenet40": "DenseNet-40"}
    name = f"{names[net['arch']]}, {net['dataset'].upper().replace('CIFAR10', 'CIFAR-10')}"
    return f"{name}, converged" if net.get("converged") else name


def core_hours(dataset: str, arch: str, method: str) -> float | None:
    """About what a full run takes on one core, from measured steps of the net on images of this size, if any."""
    recipe, images = make_recipe(dataset, arch, method, "full"), BY_DATASET[dataset].get("images")
    nets = [net for net in load("steps")["nets"].values() if not net.get("converged")]
    family = {net["arch"]: net for net in nets if net["dataset"][:5] == dataset[:5]}
    if images is None or arch not in family:
        return None
    net = family[arch]
    milliseconds = net["plain_ms"] * recipe.batch / net["batch"]
    if recipe.regulariser:
        milliseconds *= net["time"]["MIN + EXP, screened"][-1]
    return recipe.epochs * math.ceil(images / recipe.batch) * milliseconds / 3.6e6
