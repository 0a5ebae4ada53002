"""What notebooks call: a check of their parameters before any work, the stored runs, and the trained nets at hand."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from ammlib.data.sources import DataError
from ammlib.models.weights import load_weights, weights_digest
from ammlib.training.device import best_device, keep_freed_memory
from ammlib.training.estimate import estimate
from ammlib.training.execute import run_or_load, trained_model
from ammlib.training.recipes import Recipe
from ammlib.training.runs import Run, load_run, weights_path

PLAIN = (str, int, float, list, tuple, dict, type(None))  # what papermill can inject
NAMES_OF_IPYTHON = ("In", "Out")
CHECKED = "_parameters_checked"  # set in the notebook


def check_parameters(namespace: MutableMapping[str, Any], **allowed: type | Collection) -> None:
    """Reject unknown names and values in `namespace`, a notebook's `globals()`, just after its parameters.

    `allowed` gives for each parameter its choices or its type. papermill only warns of an unknown name and runs the
    default; here it is every plain value of the notebook that is not a parameter. In a notebook that has passed once,
    as when its cells are run again with another value, the new names are its own.
    """
    valid = "; ".join(f"{name}: {_describe(values)}" for name, values in allowed.items())
    given = {name for name, value in namespace.items() if isinstance(value, PLAIN) and not name.startswith("_")}
    unknown = sorted(given - set(allowed) - set(NAMES_OF_IPYTHON))
    if unknown and CHECKED not in namespace:
        raise ValueError(f"unknown parameter {', '.join(map(repr, unknown))}; valid are {valid}")
    for name, values in allowed.items():
        if not _fits(namespace[name], values):
            raise ValueError(f"{name} must be {_describe(values)}, got {namespace[name]!r}")
    namespace[CHECKED] = True


def _fits(value: Any, allowed: type | Collection) -> bool:
    if not isinstance(allowed, type):
        return any(value == choice and _fits(value, type(choice)) for choice in allowed)
    if isinstance(value, bool):
        return allowed is bool
    return isinstance(value, int | float if allowed is float else allowed)


def _describe(allowed: type | Collection) -> str:
    if isinstance(allowed, type):
        names = {str: "a word", int: "an integer", float: "a number", bool: "True or False"}
        return names.get(allowed, f"a {allowed.__name__}")
    if isinstance(allowed, range):
        return f"an integer from {allowed[0]} to {allowed[-1]}"
    return f"one of {', '.join(map(str, allowed))}"


def stored_runs(wanted: Sequence[tuple[Recipe, int]], train: bool = False) -> list[Run]:
    """Those of the wanted runs that are stored, each once, with a word on the others; `train` trains these now."""
    wanted = list(dict.fromkeys(wanted))
    missing = [pair for pair in wanted if load_run(*pair) is None]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} runs are stored")
    if train and wanted[0][0].scale == "short":
        print("this is the short scale, sized for a CPU; scale=full is the paper's protocol")
    if missing and train:
        keep_freed_memory()
        minutes = math.ceil(estimate(missing) / 60)
        about = f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
        print(f"training {len(missing)} on {best_device()}, about {about}; if stopped, the same call goes on")
        return [run_or_load(*pair) for pair in wanted]
    total = Counter(recipe.key for recipe, _ in wanted)
    for key, count in Counter(recipe.key for recipe, _ in missing).items():
        print(f"not run: {key}, {count} of {total[key]}")
    return [run for pair in wanted if (run := load_run(*pair)) is not None]


def nets_at_hand(found: Iterable[Run], seed: int = 0) -> dict[str, nn.Module]:
    """By method, the trained nets of stored runs where exactly their weights, and the data, are here; trains none."""
    nets = {}
    for run in found:
        path = weights_path(run.recipe, run.seed)
        if run.seed == seed and path.exists() and weights_digest(load_weights(path)) == run.weights:
            with suppress(DataError):
                nets[run.recipe.method] = trained_model(run.recipe, seed).cpu()
    return nets
