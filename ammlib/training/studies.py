"""The runs behind the figures and tables of the paper, and how several processes share them."""

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from ammlib.margin.classifier import choose
from ammlib.training.recipes import ALIASES, SETTINGS, TABLES, Recipe, make_recipe, reference_of, scale_of

STUDIES = TABLES["study"]


class Job(NamedTuple):
    """What is to be run."""

    recipe: Recipe
    seed: int


def study(name: str, scale: str = "auto") -> list[Job]:
    """The runs behind a figure or table of the paper; a reference comes before what starts from it."""
    table = choose("study", ALIASES.get(name, name), STUDIES)
    dataset, scale = table["dataset"], scale_of(table["dataset"], scale)
    seeds, vary = table[scale].get("seeds_of", {}), table[scale].get("vary", {})
    jobs = []
    for arch, method, *values in product(table["archs"], table["methods"], *vary.values()):
        overrides = dict(zip(vary, values, strict=True))
        if method == "reference":  # a search has one, whatever it varies of the regulariser
            overrides = {name: value for name, value in overrides.items() if name in SETTINGS}
        recipe = make_recipe(dataset, arch, method, scale, **overrides)
        chain = [reference_of(recipe), recipe] if recipe.start == "reference" else [recipe]
        count = seeds.get(arch, seeds.get(method, table[scale]["seeds"]))
        jobs += [Job(*job) for job in product(chain, range(count))]
    return list(dict.fromkeys(jobs))


def share(wanted: Iterable[Job], part: int, parts: int) -> list[Job]:
    """The part of the runs that is one process's; what starts from a reference is where that is trained."""
    chains: dict[Job, list[Job]] = {}
    for job in wanted:
        recipe, seed = job
        first = Job(reference_of(recipe), seed) if recipe.start == "reference" else job
        chains.setdefault(first, []).append(job)
    return [job for chain in list(chains.values())[part - 1 :: parts] for job in chain]
