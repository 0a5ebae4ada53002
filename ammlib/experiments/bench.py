"""All measurements by name: measure, store, print."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ammlib.data.files import home
from ammlib.experiments import scaling, soak, store, systems, tightness, worth
from ammlib.experiments.cost import attacks, growth, launches, screening, steps
from ammlib.experiments.cost.nets import CASES
from ammlib.margin.classifier import choose
from ammlib.report import cost
from ammlib.report import systems as systems_report
from ammlib.report import tightness as tightness_report
from ammlib.report.measurements import load, path_of
from ammlib.training.device import keep_freed_memory


class Part(NamedTuple):
    """One file of results/bench."""

    measure: Callable[..., dict[str, Any]]  # of archs and, if given, repeats
    table: Callable[[dict[str, Any]], str]
    archs: Collection[str]  # that it can measure
    method: str


PARTS = {
    "steps": Part(steps.measure, cost.steps, tuple(CASES), steps.__doc__),
    "growth": Part(growth.measure, cost.growth, tuple(growth.NETS), growth.__doc__),
    "launches": Part(launches.measure, cost.launches, launches.NETS, launches.__doc__),
    "deepfool": Part(attacks.measure, cost.deepfool, tuple(attacks.REPEATS), attacks.__doc__),
    "screening": Part(screening.measure, cost.screening, ("mlp",), screening.__doc__),
    "scaling": Part(scaling.measure, cost.scaling, scaling.NETS, scaling.__doc__),
    "tightness": Part(tightness.measure, tightness_report.tightness, tuple(tightness.PUBLISHED), tightness.__doc__),
    "systems": Part(systems.measure, systems_report.table, systems.NETS, systems.__doc__),
    "worth": Part(worth.measure, tightness_report.enlarged, worth.NETS, worth.__doc__),
    "soak": Part(soak.measure, soak.table, ("mlp",), soak.__doc__),
}
DEFAULT = ("steps", "growth", "launches", "deepfool")  # screening trains a net from beginning to end
OUTPUT = home() / "out" / "bench"


def run(
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
        if path_of(name, folder).exists():
            print(f"{name}: {path_of(name, folder)}\n{part.table(load(name, folder))}\n")
