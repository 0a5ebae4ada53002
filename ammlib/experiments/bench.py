"""All measurements by name: measure, store, print."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ammlib.bench import attacks, growth, screening, show, steps, store, tightness
from ammlib.bench.nets import CASES
from ammlib.device import keep_freed_memory
from ammlib.files import home
from ammlib.margin.classifier import choose


class Part(NamedTuple):
    """One file of results/bench."""

    measure: Callable[..., dict[str, Any]]  # of archs and, if given, repeats
    table: Callable[[dict[str, Any]], str]
    archs: Collection[str]  # that it can measure
    method: str


PARTS = {
    "steps": Part(steps.measure, show.steps, tuple(CASES), steps.__doc__),
    "growth": Part(growth.measure, show.growth, tuple(growth.NETS), growth.__doc__),
    "deepfool": Part(attacks.measure, show.deepfool, tuple(attacks.REPEATS), attacks.__doc__),
    "screening": Part(screening.measure, show.screening, ("mlp",), screening.__doc__),
    "tightness": Part(tightness.measure, show.tightness, tuple(tightness.METHODS), tightness.__doc__),
}
DEFAULT = ("steps", "growth", "deepfool")  # screening trains a net from beginning to end
OUTPUT = home() / "out" / "bench"


def bench(
    parts: Iterable[str] = DEFAULT,
    archs: Collection[str] = tuple(CASES),
    folder: Path = OUTPUT,
    repeats: int | None = None,
) -> None:
    """Measure part by part and net by net, store each as soon as it is done, and print the tables.

    A file keeps the nets that are not measured now, so that what was stopped can go on with the rest.
    """
    chosen = {name: choose("part", name, PARTS) for name in parts}
    for arch in archs:
        choose("arch", arch, CASES)
    if not any(set(archs) & set(part.archs) for part in chosen.values()):
        possible = "; ".join(f"{name}: {', '.join(part.archs)}" for name, part in chosen.items())
        raise ValueError(f"nothing to measure on {', '.join(archs)}; {possible}")
    torch.set_num_threads(1)
    keep_freed_memory()
    for name, part in chosen.items():
        for arch in (arch for arch in archs if arch in part.archs):
            measured = part.measure([arch], **({"repeats": repeats} if repeats else {}))
            store.store(name, measured, part.method, folder)
        if store.path_of(name, folder).exists():
            print(f"{name}: {store.path_of(name, folder)}\n{part.table(store.load(name, folder))}\n")
