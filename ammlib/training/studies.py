"""The runs behind the figures and tables of the paper, and how several processes share them."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from ammlib.margin.classifier import choose
from ammlib.methods.registry import METHODS
from ammlib.training.recipes import (
    ALIASES,
    SETTINGS,
    TABLES,
    VALUES,
    Recipe,
    make_recipe,
    reference_of,
    scale_of,
)

STUDIES = TABLES["study"]


class Job(NamedTuple):
    """What is to be run."""

    recipe: Recipe
    seed: int


def scales_of(name: str) -> list[str]:
    """The scales that a study has."""
    table = choose("study", ALIASES.get(name, name), STUDIES)
    return [scale for scale in VALUES["scale"] if scale in table]


def study(name: str, scale: str = "auto") -> list[Job]:
    """The runs behind a figure or table of the paper; a reference comes before what starts from it.

    "auto" is full on CUDA, otherwise what a CPU can do: tuned where a study has it, else short, or all there is.
    """
    scales, table = scales_of(name), STUDIES[ALIASES.get(name, name)]
    dataset, meant = table["dataset"], scale_of(table["dataset"], scale)
    if scale == "auto" and (meant not in scales or meant == "short"):
        meant = scales[-1]
    scale = choose(f"scale of {name}", meant, {name: name for name in scales})
    table = table | table[scale]
    seeds, vary = table.get("seeds_of", {}), table.get("vary", {})
    jobs = []
    for arch, method in product(table["archs"], table["methods"]):
        cells = table.get("cells_of", {}).get(method, table.get("cells", [{}]))
        for cell, *values in product(cells, *vary.values()):
            overrides = cell | dict(zip(vary, values, strict=True))
            if not METHODS[method].strength:  # a search has one, whatever it varies of the others
                overrides = {name: value for name, value in overrides.items() if name in SETTINGS}
            recipe = make_recipe(dataset, arch, method, scale, **overrides)
            chain = [reference_of(recipe), recipe] if recipe.start == "reference" else [recipe]
            count = seeds.get(arch, seeds.get(method, table["seeds"]))
            for wanted in chain:  # of what is not trained all seeds are the same
                jobs += [Job(wanted, seed) for seed in range(count if wanted.epochs else 1)]
    return list(dict.fromkeys(jobs))


def share(wanted: Iterable[Job], part: int, parts: int) -> list[Job]:
    """The part of the runs that is one process's; what starts from a reference is where that is trained, if it is."""
    chains: dict[Job, list[Job]] = {}
    for job in wanted:
        recipe, seed = job
        reference = reference_of(recipe) if recipe.start == "reference" else None
        first = Job(reference, seed) if reference and reference.epochs else job
        chains.setdefault(first, []).append(job)
    return [job for chain in list(chains.values())[part - 1 :: parts] for job in chain]
