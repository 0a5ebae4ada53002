"""Operations that a training step launches and how often it waits for the device: what a small net costs on a GPU.

Counted, not timed, so that it needs no GPU: every operation that PyTorch dispatches in a step, other than views and
allocations, and of these the ones whose result Python or a shape depends on, which wait until all that was launched
before is done. Nets in the middle of their training (ResNet-20: its reference), one batch after the other, medians.
The batched strategy is what runs on a GPU, the frugal one what runs on a CPU.
"""

from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ammlib.experiments.cost.nets import CASES, Case, partly_trained
from ammlib.margin.gradients import STRATEGIES

NETS = ("mlp", "lenet", "resnet20")
REPEATS = 5
NO_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "_unsafe_view")
WAITS = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "_unique2", "equal", "is_nonzero")
TO_PYTHON = ("tolist", "cpu", "numpy")  # which on a CPU launch nothing, on a GPU a copy


class Launches(TorchDispatchMode):
    """Counts the operations that are dispatched inside."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        self.launches += not operation.is_view and name not in NO_KERNEL
        self.waits += name in WAITS
        return operation(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    """Counts the copies to Python inside."""

    waits = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.waits += getattr(function, "__name__", "") in TO_PYTHON
        return function(*args, **(kwargs or {}))


def count(step: Callable[[], object]) -> tuple[int, int]:
    """Operations launched, and waits for the device."""
    with Copies() as copies, Launches() as launched:
        step()
    return launched.launches + copies.waits, launched.waits + copies.waits


def measure(archs: Iterable[str] = NETS, repeats: int = REPEATS) -> dict[str, Any]:
    """All nets."""
    return {"nets": {name: measure_net(CASES[name], repeats) for name in archs}}


def measure_net(case: Case, repeats: int = REPEATS) -> dict[str, Any]:
    """Medians of a plain step and of one with AMM by each strategy."""
    net, images = partly_trained(case)
    with_amm = {strategy: net.regulariser("MIN + EXP, screened") for strategy in STRATEGIES}
    for strategy, amm in with_amm.items():
        amm.strategy = strategy
    regularisers = {"plain": None, **with_amm}
    counts: dict[str, list[tuple[int, int]]] = {name: [] for name in regularisers}
    for _ in range(repeats):
        x, y = images.batch(case.batch)
        for name, regulariser in regularisers.items():
            counts[name].append(count(partial(net.step, x, y, regulariser)))
    found = {name: [int(median(values)) for values in zip(*pairs, strict=True)] for name, pairs in counts.items()}
    last = with_amm["batched"].last
    assert last is not None  # it was called
    about = {"dataset": case.dataset, "arch": case.arch, "images": images.name, "batch": case.batch, "repeats": repeats}
    return {**about, "misclassified": last.misclassified / case.batch, "launches_and_waits": found}
