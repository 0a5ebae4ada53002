"""Margins and robust accuracy of the trained nets of study `systems`, seed 0, as far as their weights are at hand.

Untargeted from the prediction, l2, without a pixel box: DeepFool (6 steps) and the tight attack (20 steps) on the first
1,000 test images, means over all of them. Robust accuracy: l2 PGD, 40 steps, from the label, at three radii. Time of a
training step from the trained weights: CPU time (CUDA events on a GPU), the median of ten.
"""

from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Any

from torch import nn
from tqdm.auto import tqdm

from ammlib.data.datasets import load_data
from ammlib.data.folders import at_once
from ammlib.experiments.cost.nets import Clock
from ammlib.margin.margins import margins
from ammlib.margin.pgd import robust
from ammlib.training.device import best_device
from ammlib.training.execute import trained_model
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import Recipe
from ammlib.training.runs import weights_path
from ammlib.training.studies import study
from ammlib.training.train import Training

RADII = (0.5, 1.0, 1.5)  # pixel units
NETS = ("mlp", "lenet")


def measure(archs: Iterable[str] = NETS, repeats: int = 1, samples: int = 1000) -> dict[str, Any]:
    """By net and method: the mean margin by each attack, and the accuracy under PGD; `repeats` is for other parts."""
    data = load_data("mnist")
    x, y = (column[:samples].to(best_device()) for column in (at_once(data.x_test[:samples]), data.y_test))
    nets: dict[str, Any] = {arch: {"methods": {}} for arch in archs}
    wanted = [job.recipe for job in study("systems") if job.seed == 0 and job.recipe.arch in nets]
    for recipe in tqdm([recipe for recipe in wanted if weights_path(recipe, 0).exists()], "systems", leave=False):
        model = trained_model(recipe, 0, progress=False)
        found = {attack: margins(model, x, method=attack, progress=False) for attack in ("deepfool", "tight")}
        nets[recipe.arch]["methods"][recipe.method] = {
            **{attack: float(m.norm.mean()) for attack, m in found.items()},
            "ms": milliseconds(recipe, model),
            "robust": [float(robust(model, x, y, radius).float().mean()) for radius in RADII],
        }
    return {"radii": RADII, "samples": samples, "nets": nets}


def milliseconds(recipe: Recipe, model: nn.Module, steps: int = 10) -> float:
    """Of a training step from the weights of a trained model."""
    training = Training(recipe, 0, prepare_data(recipe.with_(train_size=recipe.batch * (steps + 1))))
    training.model.load_state_dict(model.state_dict())
    clock = Clock(training.device)
    batches = zip(training.batches.epoch(0), training.batches.indices(0), strict=True)
    times = [clock.milliseconds(partial(training.take_step, x, y, index)) for (x, y), index in batches]
    return median(times[1:])  # the first warms up
