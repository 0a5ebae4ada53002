"""The runs behind the figures and tables of the paper, and how several processes share them."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from ammlib.margin.classifier import choose
from ammlib.training.recipes import (
    ALIASES,
    METHODS,
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

    "auto" is the only scale of a study that has no other.
    """
    scales, table = scales_of(name), STUDIES[ALIASES.get(name, name)]
    dataset, scale = table["dataset"], scales[0] if scale == "auto" and len(scales) == 1 else scale
    scale = choose(f"scale of {name}", scale_of(dataset, scale), {name: name for name in scales})
    table = table | table[scale]
    seeds, vary = table.get("seeds_of", {}), table.get("vary", {})
    jobs = []
    for arch, method, cell, *values in product(
        table["archs"], table["methods"], table.get("cells", [{}]), *vary.values()
    ):
        overrides = cell | dict(zip(vary, values, strict=True))
        if "regulariser" not in METHODS[method]:  # a search has one, whatever it varies of the regulariser
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
