"""Margins and robust accuracy of the trained nets of study `systems`, seed 0: of those whose weights are at hand; what
was stored of the others stays.

Untargeted from the prediction, l2, without a pixel box: DeepFool (6 steps) and the tight attack (20 steps) on the first
1,000 test images, means over all of them. Robust accuracy: l2 PGD, 40 steps, from the label, at three radii. Time of a
training step from the trained weights: CPU time (CUDA events on a GPU), the median of ten, and as a ratio to that of a
plain step, in turns with it.
"""

from collections.abc import Iterable
from contextlib import suppress
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
from ammlib.report.measurements import load
from ammlib.training.device import best_device
from ammlib.training.execute import trained_model
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import Recipe, reference_of
from ammlib.training.runs import run_name, weights_path
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
    for recipe in wanted:
        nets[recipe.arch]["methods"] |= known(recipe)
    for recipe in tqdm([recipe for recipe in wanted if weights_path(recipe, 0).exists()], "systems", leave=False):
        model = trained_model(recipe, 0, progress=False)
        found = {attack: margins(model, x, method=attack, progress=False) for attack in ("deepfool", "tight")}
        nets[recipe.arch]["methods"][recipe.method] = {
            "run": run_name(recipe, 0),
            **{attack: float(m.norm.mean()) for attack, m in found.items()},
            **times(recipe, model),
            "robust": [float(robust(model, x, y, radius).float().mean()) for radius in RADII],
        }
    return {"radii": RADII, "samples": samples, "nets": nets}


def known(recipe: Recipe) -> dict[str, Any]:
    """What is stored of this net, by its method."""
    with suppress(FileNotFoundError):
        stored = load("systems")["nets"].get(recipe.arch, {}).get("methods", {})
        if stored.get(recipe.method, {}).get("run") == run_name(recipe, 0):
            return {recipe.method: stored[recipe.method]}
    return {}


def times(recipe: Recipe, model: nn.Module, steps: int = 10) -> dict[str, float]:
    """Of training steps from the weights of a trained model: milliseconds, and how many times a plain step."""
    recipes = (r.with_(train_size=r.batch * (steps + 1)) for r in (recipe, reference_of(recipe)))
    trainings = [Training(r, 0, prepare_data(r)) for r in recipes]
    trainings[0].model.load_state_dict(model.state_dict())
    clock = Clock(trainings[0].device)
    batches = [zip(training.batches.epoch(0), training.batches.indices(0), strict=True) for training in trainings]
    took = [
        [clock.milliseconds(partial(t.take_step, x, y, i)) for t, ((x, y), i) in zip(trainings, turn, strict=True)]
        for turn in zip(*batches, strict=True)
    ]
    own, plain = map(median, zip(*took[1:], strict=True))  # the first warms up
    return {"ms": own, "x_plain": own / plain}
