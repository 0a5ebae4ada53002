"""How the time of a training step grows with the batch, the classes, the share misclassified and the iterations.

Plain and regularised steps take turns on the same batches and weights; CPU time (CUDA events on a GPU), medians. With
the batch and the iterations: nets in the middle of their training. With the classes: fresh nets with as many outputs,
labels being their predictions, so that all samples are correct. With the share misclassified: labels are the
predictions of the partly trained net, but for that share, whose labels are the second-highest class. Exponents are
slopes of a least-squares line through the logarithms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.experiments.cost.nets import CASES, Case, Clock, Net, partly_trained
from ammlib.report.measurements import VARIANTS

VALUES = {
    "batch": (25, 50, 100, 200, 400, 800),
    "classes": (10, 100, 1000),
    "misclassified": (0.03, 0.06, 0.12, 0.25, 0.5, 1.0),
    "u": (1, 2, 3, 4, 5, 6),
}
NETS = {"mlp": tuple(VALUES), "lenet": tuple(VALUES), "resnet20": ("misclassified",)}
Values = Mapping[str, Sequence[float]]
Times = dict[str, list[float]]  # milliseconds of "plain" and of each variant, one for each value


def turns(net: Net, batches: Callable[[], tuple[Tensor, Tensor]], repeats: int, u: int = 6) -> dict[str, float]:
    """Median milliseconds of a plain step and of one of each variant."""
    clock = Clock(net.device)
    regularisers = {"plain": None, **{name: net.regulariser(name, steps=u) for name in VARIANTS}}
    net.step(*batches())  # the first one of its size allocates
    times: Times = {name: [] for name in regularisers}
    for _ in range(repeats):
        x, y = batches()
        for name, amm in regularisers.items():
            times[name].append(clock.milliseconds(partial(net.step, x, y, amm)))
    return {name: median(values) for name, values in times.items()}


def labelled(model: nn.Module, x: Tensor, wrong: float) -> Tensor:
    """The predictions, or the second-highest class for a share of the samples."""
    with torch.no_grad():
        first, second = model(x).topk(2).indices.unbind(1)
    return torch.where(torch.arange(len(x), device=x.device) < round(wrong * len(x)), second, first)


def measure(archs: Iterable[str] = tuple(NETS), repeats: int = 2, values: Values = VALUES) -> dict[str, Any]:
    """Milliseconds over all values of what is varied."""
    nets = {name: measure_net(CASES[name], NETS[name], repeats, values) for name in archs}
    return {"repeats": repeats, "values": values, "nets": nets}


def measure_net(case: Case, quantities: Iterable[str], repeats: int, values: Values) -> dict[str, Times]:
    """The times of one net, by quantity."""
    net, images = partly_trained(case)

    def made(model: nn.Module, wrong: float) -> tuple[Tensor, Tensor]:
        x, _ = images.batch(case.batch)
        return x, labelled(model, x, wrong)

    def with_classes(classes: int) -> dict[str, float]:
        fresh = Net(case, classes)
        fresh.hold()
        return turns(fresh, partial(made, fresh.model, 0.0), repeats)

    measures = {
        "batch": lambda size: turns(net, partial(images.batch, size), repeats),
        "classes": with_classes,
        "misclassified": lambda share: turns(net, partial(made, net.model, share), repeats),
        "u": lambda u: turns(net, partial(images.batch, case.batch), repeats, u),
    }
    found = {}
    for name in quantities:
        rows = [measures[name](value) for value in tqdm(values[name], f"{case.arch}, {name}", leave=False)]
        found[name] = {variant: [row[variant] for row in rows] for variant in rows[0]}
    return found
