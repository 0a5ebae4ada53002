"""What notebooks need beside the library: parameters checked before any work, and a toy to play with."""

from collections.abc import Collection, Mapping
from typing import Any

import matplotlib.pyplot as plt
from ipywidgets import Dropdown, FloatLogSlider, interactive
from matplotlib.axes import Axes

from ammlib import plots
from ammlib.amm import AGGREGATION, SHRINKAGE
from ammlib.data import load_data
from ammlib.recipes import make_recipe
from ammlib.train import train

PLAIN = (str, int, float, list, tuple, dict, type(None))  # what papermill can inject
NAMES_OF_IPYTHON = ("In", "Out")


def check_parameters(namespace: Mapping[str, Any], **allowed: type | Collection) -> None:
    """Reject unknown names and values in `namespace`, a notebook's `globals()`, just after its parameters.

    `allowed` gives for each parameter its choices or its type. papermill only warns of an unknown name and runs the
    default; here it is every plain value of the notebook that is not a parameter.
    """
    valid = "; ".join(f"{name}: {_describe(values)}" for name, values in allowed.items())
    given = {name for name, value in namespace.items() if isinstance(value, PLAIN) and not name.startswith("_")}
    if unknown := sorted(given - set(allowed) - set(NAMES_OF_IPYTHON)):
        raise ValueError(f"unknown parameter {', '.join(map(repr, unknown))}; valid are {valid}")
    for name, values in allowed.items():
        if not _fits(namespace[name], values):
            raise ValueError(f"{name} must be {_describe(values)}, got {namespace[name]!r}")


def explore_toy(epochs: int = 20):
    """Widgets for aggregation, shrinkage and c; each change trains the toy's linear classifier anew and draws it."""

    def draw(aggregation: str, shrinkage: str, c: float) -> None:
        _, axes = plt.subplots(figsize=(2.6, 3.2))
        draw_toy(axes, aggregation, shrinkage, c, epochs)
        plt.show()

    slider = FloatLogSlider(value=1, base=2, min=-3, max=3, step=0.5, continuous_update=False, description="c")
    choices = {"aggregation": Dropdown(options=list(AGGREGATION)), "shrinkage": Dropdown(options=list(SHRINKAGE))}
    return interactive(draw, **choices, c=slider)


def draw_toy(axes: Axes, aggregation: str, shrinkage: str, c: float, epochs: int = 20) -> None:
    """Train the toy's linear classifier for a few epochs, not stored, and draw its boundary and the test points."""
    recipe = make_recipe("toy", "linear", f"{aggregation}_{shrinkage}", c=c, epochs=epochs)
    model = train(recipe, seed=0, progress=False).model
    plots.boundary(axes, model, *load_data("toy").test, f"{aggregation}+{shrinkage}".upper() + f", c = {c:.3g}")


def _fits(value: Any, allowed: type | Collection) -> bool:
    if not isinstance(allowed, type):
        return not isinstance(value, bool | list | dict) and value in allowed
    if isinstance(value, bool):
        return allowed is bool
    return isinstance(value, int | float if allowed is float else allowed)


def _describe(allowed: type | Collection) -> str:
    if isinstance(allowed, type):
        return {str: "a word", int: "an integer", float: "a number", bool: "True or False"}[allowed]
    if isinstance(allowed, range):
        return f"an integer from {allowed[0]} to {allowed[-1]}"
    return f"one of {', '.join(map(str, allowed))}"
