"""Time and peak memory of a training step, as ratios to plain cross-entropy, and where the time goes.

Time: one process, one thread, nets in the middle of their training. Plain and regularised steps take turns on the same
batches and weights (with a learning rate of zero), so that whatever else the machine does hits them alike; CPU time, or
CUDA events on a GPU; medians over the repeats. Memory: the peak of a step in a fresh process, beyond what weights and
momentum hold: growth of the resident size or, on a GPU, of what PyTorch allocates. Parts, with six iterations:
cross-entropy is a plain step; screening, up to the first step of the attack on every candidate; trajectories, the
steps after it; double backward, the rest.
"""

from collections.abc import Callable, Iterable
from functools import partial
from statistics import mean, median
from typing import Any

from tqdm.auto import tqdm

from ammlib.experiments.cost.memory import peaks
from ammlib.experiments.cost.nets import CASES, Case, Clock, Net, partly_trained
from ammlib.margin.amm import AMM
from ammlib.margin.screening import everything
from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS

STEPS = (1, 2, 3, 4, 5, 6)  # u, the iterations of the attack


class Marked:
    """A part of a regulariser that marks when its last call began and ended."""

    def __init__(self, part: Callable[..., Any], clock: Clock) -> None:
        self.part, self.clock = part, clock

    def __call__(self, *args: Any) -> Any:
        self.start = self.clock.mark()
        try:
            return self.part(*args)
        finally:
            self.end = self.clock.mark()


def timed(net: Net, variant: str, steps: int) -> AMM:
    """The regulariser of a variant, two parts of which are marked."""
    amm, clock = net.regulariser(variant, steps=steps), Clock(net.device)
    amm.follow, amm.margin = Marked(amm.follow, clock), Marked(amm.margin, clock)
    return amm


def spent(amm: AMM) -> tuple[float, float]:
    """Milliseconds of screening, and of following trajectories to their end, in the last call."""
    follow, margin = amm.follow, amm.margin
    assert isinstance(follow, Marked) and isinstance(margin, Marked)  # by `timed`
    screening = 0.0 if follow.part is everything else follow.clock.between(follow.start, follow.end)
    return screening, follow.clock.between(follow.end, margin.start)


def measure(archs: Iterable[str] = tuple(CASES), repeats: int | None = None) -> dict[str, Any]:
    """All nets; `repeats` replaces their own."""
    return {"steps": STEPS, "nets": {name: measure_net(CASES[name], repeats) for name in archs}}


def measure_net(case: Case, repeats: int | None = None, steps: tuple[int, ...] = STEPS) -> dict[str, Any]:
    """Ratios of every variant and number of iterations, the share misclassified, and the parts at the last number."""
    net, images = partly_trained(case)
    repeats = repeats or case.repeats
    regularisers = {(name, u): timed(net, name, u) for name in VARIANTS for u in steps}
    times: dict[tuple[str, int], list[float]] = {}
    marks: dict[tuple[str, int], list[tuple[float, float]]] = {}
    clock, plain, wrong = Clock(net.device), [], []
    for _ in tqdm(range(repeats), f"steps of {case.arch}", leave=False):
        x, y = images.batch(case.batch)
        for key, amm in regularisers.items():
            plain.append(clock.milliseconds(partial(net.step, x, y)))
            times.setdefault(key, []).append(clock.milliseconds(partial(net.step, x, y, amm)))
            marks.setdefault(key, []).append(spent(amm))
        assert amm.last is not None  # it was called
        wrong.append(amm.last.misclassified / case.batch)
    memory = peaks(net, x, y, [None, *regularisers])
    ordinary = median(plain)
    return {
        "dataset": case.dataset,
        "arch": case.arch,
        "converged": case.reference == "tuned",
        "images": images.name,
        "device": net.device.type,
        "batch": case.batch,
        "repeats": repeats,
        "misclassified": mean(wrong),
        "plain_ms": ordinary,
        "plain_mb": memory[None],
        "time": {name: [median(times[name, u]) / ordinary for u in steps] for name in VARIANTS},
        "memory": {name: [memory[name, u] / memory[None] for u in steps] for name in VARIANTS},
        "parts_ms": {n: parts(ordinary, times[n, steps[-1]], marks[n, steps[-1]]) for n in VARIANTS},
    }


def parts(plain: float, total: list[float], spent: list[tuple[float, float]]) -> dict[str, float]:
    """Milliseconds by `PARTS_OF_STEP` of a step that took `total`."""
    screening, trajectories = map(median, zip(*spent, strict=True))
    rest = median(total) - plain - screening - trajectories
    return dict(zip(PARTS_OF_STEP, (plain, screening, trajectories, rest), strict=True))
