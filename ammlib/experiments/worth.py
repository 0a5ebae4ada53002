"""What a larger margin is worth beyond MNIST: CIFAR-10's ResNet-20 as published, fine-tuned with AMM, and its control.

Seed 0 at the tuned scale, as far as weights are at hand, on the first test images of the half that is reported.
Untargeted from the prediction, l2, without a pixel box: DeepFool (6 steps) and the tight attack (20 steps). Robust
accuracy: l2 PGD, 40 steps, from the label.
"""

from collections.abc import Iterable
from typing import Any

from ammlib.data.folders import at_once
from ammlib.experiments.tightness import own
from ammlib.training.device import best_device
from ammlib.training.execute import trained_model
from ammlib.training.prepare import prepare_data
from ammlib.training.runs import weights_path
from ammlib.training.studies import study

NETS = ("resnet20",)
SAMPLES = 500
RADII = (0.05, 0.1, 0.2, 0.3)  # pixel units


def measure(archs: Iterable[str] = NETS, repeats: int = 1, samples: int = SAMPLES) -> dict[str, Any]:
    """By net and method: which images are correct, both margins of each, and the accuracy under PGD."""
    nets: dict[str, Any] = {arch: {"images": "cifar10", "methods": {}} for arch in archs}
    for recipe, seed in study("table4", "tuned"):
        if recipe.arch in nets and seed == 0 and weights_path(recipe, seed).exists():
            data = prepare_data(recipe)
            x, y = (part.to(best_device()) for part in (at_once(data.x_test[:samples]), data.y_test[:samples]))
            found = own(trained_model(recipe, seed, progress=False), x, y, RADII)
            nets[recipe.arch]["methods"][recipe.method] = found
    return {"radii": RADII, "samples": samples, "nets": nets}
