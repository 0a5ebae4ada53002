"""DeepFool of this package against foolbox's and adv-lib's: seconds and norms on the same nets and images.

The trained reference nets, untargeted from the prediction, l2, at most 50 steps, overshoot 0.02, without a box: foolbox
gets bounds far away, adv-lib, which only knows [0, 1], a net whose inputs are shifted and scaled so that its box is
[-3, 4]. Once with the model as its user has it, after .eval(), and once with frozen parameters
(requires_grad_(False)), which spares some implementations work. All take turns on the same test images; CPU time (CUDA
events on a GPU), medians.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.experiments.cost.nets import CASES, Clock, Images
from ammlib.margin.deepfool import deepfool
from ammlib.models import make_model
from ammlib.training.device import best_device, placed
from ammlib.training.execute import trained_weights
from ammlib.training.recipes import make_recipe

REPEATS = {"mlp": 15, "lenet": 5}  # by net; on larger ones the others would take minutes
STEPS = 50
PARAMETERS = {"trainable": True, "frozen": False}  # of the model: whether they require a gradient
LOW, HIGH = -3.0, 4.0  # no perturbed pixel comes near


class Widened(nn.Module):
    """A model whose inputs from 0 to 1 stand for pixels from LOW to HIGH."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor) -> Tensor:
        return self.model(LOW + (HIGH - LOW) * z)


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The perturbed images."""
    return x + deepfool(model, x, steps=STEPS).delta


def foolbox(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(-100, 100), device=x.device)
    return foolbox.attacks.L2DeepFoolAttack(steps=STEPS).run(wrapped, x, y)


def adv_lib(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import_module("ammlib.data.vision")  # adv-lib imports torchvision, which may not work without
    from adv_lib.attacks import df

    return LOW + (HIGH - LOW) * df(Widened(model), (x - LOW) / (HIGH - LOW), y, steps=STEPS)


ATTACKS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "ammlib": ours,
    "foolbox": foolbox,
    "adv_lib": adv_lib,
}


def at_hand() -> list[str]:
    """Those of the three packages that are installed."""
    return [name for name in ATTACKS if find_spec(name) is not None]


def published_net(arch: str, method: str) -> nn.Module:
    """A net of MNIST whose weights are in results/weights."""
    recipe = make_recipe("mnist", arch, method, "short")
    model = make_model("mnist", arch)
    model.load_state_dict(trained_weights(recipe, 0))
    return placed(model, best_device()).eval()


def measure(archs: Iterable[str] = tuple(REPEATS), repeats: int | None = None, samples: int = 500) -> dict[str, Any]:
    """Seconds with trainable and with frozen parameters, norms, and the share of images that changed their class."""
    nets = {arch: compare(arch, samples, repeats or REPEATS[arch]) for arch in archs}
    return {"samples": samples, "nets": nets}


def compare(arch: str, samples: int, repeats: int) -> dict[str, Any]:
    model, images = published_net(arch, "reference"), Images(CASES[arch].dataset)
    x = images.test(samples)
    y, clock = model(x).argmax(1), Clock(x.device)
    names, found = at_hand(), {}
    times: dict[str, dict[str, list[float]]] = {state: {name: [] for name in names} for state in PARAMETERS}
    for name in names:
        ATTACKS[name](model, x[:10], y[:10])  # imports, and what is done once
    for _, state in tqdm(list(product(range(repeats), PARAMETERS)), f"DeepFool on {arch}", leave=False):
        model.requires_grad_(PARAMETERS[state])
        for name, values in times[state].items():
            start = clock.mark()
            found[name] = ATTACKS[name](model, x, y).detach()
            values.append(clock.between(start, clock.mark()) / 1e3)
    fooled = {name: model(there).argmax(1) != y for name, there in found.items()}
    norms = {name: (there - x).flatten(1).norm(dim=1) for name, there in found.items()}
    return {
        "images": images.name,
        "repeats": repeats,
        "seconds": {state: {name: median(values) for name, values in of.items()} for state, of in times.items()},
        "mean_norm": {name: float(norm.mean()) for name, norm in norms.items()},
        "median_norm": {name: float(norm.median()) for name, norm in norms.items()},
        "fooled": {name: float(changed.float().mean()) for name, changed in fooled.items()},
    }
