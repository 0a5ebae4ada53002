"""What notebooks call: a check of their parameters before any work, the stored runs, and the trained nets at hand."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from pandas import DataFrame
from torch import nn

from ammlib.data.sources import DataError
from ammlib.models.weights import load_weights, weights_digest
from ammlib.report import style
from ammlib.report.frame import compare, jobs_behind
from ammlib.training.device import best_device, keep_freed_memory
from ammlib.training.estimate import estimate
from ammlib.training.execute import run_or_load, trained_model
from ammlib.training.recipes import Recipe
from ammlib.training.runs import Run, load_run, weights_path
from ammlib.training.studies import study

PLAIN = (str, int, float, list, tuple, dict, type(None))  # what papermill can inject
NAMES_OF_IPYTHON = ("In", "Out")
CHECKED = "_parameters_checked"  # set in the notebook


def check_parameters(namespace: MutableMapping[str, Any], **allowed: type | Collection) -> None:
    """Reject unknown names and values in `namespace`, a notebook's `globals()`, just after its parameters.

    `allowed` gives for each parameter its default and what else it can be: values, a range, a type; of a range alone
    the default is its first, of a type alone False, 0 or "". papermill only warns of an unknown name and runs the
    default; here it is every plain value of the notebook that is not a parameter. In one that has passed once, as
    when its cells are run again with another value, the new names are its own. With other values than the defaults the
    notebook explores: its figures go to out/figures, and none that is committed changes.
    """
    choices = {name: _with_default(values) for name, values in allowed.items()}
    valid = "; ".join(f"{name}: {_describe(values)}" for name, values in choices.items())
    given = {name for name, value in namespace.items() if isinstance(value, PLAIN) and not name.startswith("_")}
    unknown = sorted(given - set(allowed) - set(NAMES_OF_IPYTHON))
    if unknown and CHECKED not in namespace:
        raise ValueError(f"unknown parameter {', '.join(map(repr, unknown))}; valid are {valid}")
    for name, values in choices.items():
        if not any(_fits(namespace[name], choice) for choice in values):
            raise ValueError(f"{name} must be {_describe(values)}, got {namespace[name]!r}")
    style.exploring = any(namespace[name] != default for name, (default, *_) in choices.items())
    namespace[CHECKED] = True


def _with_default(allowed: Any) -> tuple[Any, ...]:
    if isinstance(allowed, range):
        return allowed[0], allowed
    return (allowed(), allowed) if isinstance(allowed, type) else tuple(allowed)


def _fits(value: Any, choice: Any) -> bool:
    if isinstance(choice, range):
        return type(value) is int and value in choice
    if not isinstance(choice, type):
        return value == choice and _fits(value, type(choice))
    if isinstance(value, bool):
        return choice is bool
    return isinstance(value, int | float if choice is float else choice)


def _describe(choices: Sequence[Any]) -> str:
    words = {str: "a word", int: "an integer", float: "a number", bool: "True or False", list: "a list"}
    for choice in choices:
        if isinstance(choice, range):
            return f"an integer from {choice[0]} to {choice[-1]}"
        if isinstance(choice, type):
            return words[choice]
    return f"one of {', '.join(map(str, choices))}"


def stored_runs(wanted: Sequence[tuple[Recipe, int]], train: bool = False) -> list[Run]:
    """Those of the wanted runs that are stored, each once, with a word on the others; `train` trains these now."""
    wanted = list(dict.fromkeys(wanted))
    missing = [pair for pair in wanted if load_run(*pair) is None]
    stored = f"{len(wanted) - len(missing)} of {len(wanted)} runs are stored"
    if missing and train:
        keep_freed_memory()
        minutes = math.ceil(estimate(missing) / 60)  # which takes seconds
        about = f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
        print(f"{stored}; training {len(missing)} on {best_device()}, about {about} or less")
        print("if stopped, the same call goes on")
        if wanted[0][0].scale == "short":
            print("this is the short scale, sized for a CPU; scale=full is the paper's protocol")
        return [run_or_load(*pair) for pair in wanted]
    print(f"{stored}; nothing is trained")
    total = Counter(recipe.key for recipe, _ in wanted)
    for key, count in Counter(recipe.key for recipe, _ in missing).items():
        print(f"not run: {key}, {count} of {total[key]}")
    return [run for pair in wanted if (run := load_run(*pair)) is not None]


def study_runs(
    name: str, scale: str = "auto", train: bool = False, arch: str | None = None
) -> tuple[DataFrame, list[Run]]:
    """A study beside the paper, and the stored runs behind what is shown of it, of one net if `arch` is given.

    `train` first trains what is missing at this scale or, if it is "auto", at that of this machine.
    """
    if train:
        stored_runs([job for job in study(name, scale) if job.recipe.arch == arch or not arch], train=True)
    rows = compare(name, scale)
    behind = [job for job in jobs_behind(rows, name) if job.recipe.arch == arch or not arch]
    return rows, stored_runs(behind)


def nets_at_hand(found: Iterable[Run], seed: int = 0) -> dict[str, nn.Module]:
    """By method, the trained nets of stored runs where exactly their weights, and the data, are here; trains none."""
    nets = {}
    for run in found:
        path = weights_path(run.recipe, run.seed)
        if run.seed == seed and path.exists() and weights_digest(load_weights(path)) == run.weights:
            with suppress(DataError):
                nets[run.recipe.method] = trained_model(run.recipe, seed).cpu()
    return nets
