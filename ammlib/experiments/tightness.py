"""How near each attack comes to the true margin, and what an attacker finds: the trained nets of MNIST.

Untargeted from the prediction, l2, without a pixel box. DeepFool (6 steps) and the tight attack (20 steps) on the first
test images; on fewer of them also the tight attack with 100 steps, foolbox's DDN (200 steps) and adv-lib's FAB (100
steps), in turn; CPU time (CUDA events on a GPU), of the first two the median of five rounds. Points that
do not change the prediction count as not found. Robust accuracy: l2 PGD, 40 steps, from the label.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.experiments.cost.attacks import HIGH, LOW, Widened, published_net
from ammlib.experiments.cost.nets import Clock, Images
from ammlib.margin.deepfool import deepfool
from ammlib.margin.margins import margins
from ammlib.margin.pgd import robust
from ammlib.margin.tight import tight

# Nets and methods whose weights are published.
PUBLISHED = {"mlp": ("reference", "amm", "elsayed", "refined"), "lenet": ("reference", "amm")}
SAMPLES, COMPARED = 1000, 300
COMPARABLE = ("deepfool", "tight")  # in time; the others are slower by far
RADII = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)  # pixel units


def ddn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The perturbed images of foolbox's decoupled direction and norm attack."""
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(-100, 100), device=x.device)
    return foolbox.attacks.DDNAttack(steps=200).run(wrapped, x, y)


def fab(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The perturbed images of adv-lib's fast adaptive boundary attack."""
    import_module("ammlib.data.vision")  # adv-lib imports torchvision, which may not work without
    from adv_lib.attacks import fab

    return LOW + (HIGH - LOW) * fab(Widened(model), (x - LOW) / (HIGH - LOW), y, norm=2, n_iter=100)


ATTACKS: dict[str, tuple[str, Callable[[nn.Module, Tensor, Tensor], Tensor]]] = {  # and the package each needs
    "deepfool": ("ammlib", lambda model, x, y: x + deepfool(model, x).delta),
    "tight": ("ammlib", lambda model, x, y: x + tight(model, x).delta),
    "tight, 100 steps": ("ammlib", lambda model, x, y: x + tight(model, x, steps=100).delta),
    "DDN (foolbox)": ("foolbox", ddn),
    "FAB (adv-lib)": ("adv_lib", fab),
}


def measure(
    archs: Iterable[str] = tuple(PUBLISHED), repeats: int = 5, samples: int = SAMPLES, compared: int = COMPARED
) -> dict[str, Any]:
    """By net and method: norms, seconds of the attacks, and robust accuracy."""
    nets: dict[str, dict[str, Any]] = {}
    for arch in archs:
        images = Images("mnist")
        x, y = images.test(samples), images.data.y_test[:samples]
        nets[arch] = {"images": images.name, "methods": {}}
        for method in PUBLISHED[arch]:
            model = published_net(arch, method)
            nets[arch]["methods"][method] = {
                **own(model, x, y.to(x.device), RADII),
                "compared": against_others(model, x[:compared], f"{arch}, {method}", repeats),
            }
    return {"radii": RADII, "samples": samples, "nets": nets}


def own(model: nn.Module, x: Tensor, y: Tensor, radii: Iterable[float]) -> dict[str, Any]:
    """Which images are classified correctly, both margins of each, and the accuracy under attack by radius."""
    found = {method: margins(model, (x, y), method=method, progress=False) for method in COMPARABLE}
    accuracy = [float(robust(model, x, y, radius).float().mean()) for radius in tqdm(radii, "PGD", leave=False)]
    norms = {method: m.norm.tolist() for method, m in found.items()}
    correct = found["tight"].correct
    assert correct is not None  # labels were given
    return {"correct": correct.int().tolist(), "norms": norms, "robust": accuracy}


def against_others(model: nn.Module, x: Tensor, name: str, repeats: int) -> dict[str, Any]:
    """Norms (None where the prediction did not change) and seconds of every attack at hand."""
    y, clock = model(x).argmax(1), Clock(x.device)
    at_hand = [attack for attack in ATTACKS if find_spec(ATTACKS[attack][0])]
    norms, seconds = {}, {attack: list[float]() for attack in at_hand}
    turns = [(attack, turn) for turn in range(repeats) for attack in at_hand if not turn or attack in COMPARABLE]
    for attack, turn in tqdm(turns, name, leave=False):
        _, run = ATTACKS[attack]
        if not turn:
            run(model, x[:10], y[:10])  # imports, and what is done once
        start = clock.mark()
        there = run(model, x, y).detach()
        seconds[attack].append(clock.between(start, clock.mark()) / 1e3)
        norm, fooled = (there - x).flatten(1).norm(dim=1), model(there).argmax(1) != y
        norms[attack] = [n if ok else None for n, ok in zip(norm.tolist(), fooled.tolist(), strict=True)]
    return {"norms": norms, "seconds": {attack: median(times) for attack, times in seconds.items()}}
