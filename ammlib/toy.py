"""The toy experiment (section 3.3.3, Fig. 1): what its linear classifiers achieve, and a toy to play with."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from ipywidgets import Dropdown, FloatLogSlider, interactive
from matplotlib.axes import Axes
from torch import nn

from ammlib import plots
from ammlib.amm import AGGREGATION, SHRINKAGE
from ammlib.data import load_data
from ammlib.evaluate import margins
from ammlib.recipes import label, make_recipe
from ammlib.runs import Run, trained_model
from ammlib.train import train

LARGEST_MARGIN = 0.99  # the rectangles are 1.98 apart


def achieved(model: nn.Module) -> dict[str, float]:
    """Test accuracy in %, angle of w to the x1 axis in degrees, and the smallest distance of a test point.

    The distance is negative where a point lies on the wrong side.
    """
    found = margins(model, load_data("toy").test, progress=False, steps=1, overshoot=0)  # exact for a linear f
    signed = found.norm.where(found.correct, -found.norm)
    w = next(module for module in model.modules() if isinstance(module, nn.Linear)).weight.detach().squeeze(0)
    angle = math.degrees(math.atan2(float(w[1]), float(w[0])))
    return {"accuracy": 100 * float(found.correct.float().mean()), "angle": angle, "margin": float(signed.min())}


def table(runs: Sequence[Run]) -> str:
    """Mean ± standard deviation over the seeds of each method, as text."""
    lines = [f"{'':14}{'test accuracy, %':>18}{'angle of w, °':>18}{'smallest margin':>18}{'seeds':>7}"]
    for method in dict.fromkeys(run.recipe.method for run in runs):
        mine = [achieved(trained_model(run.recipe, run.seed)) for run in runs if run.recipe.method == method]
        columns = [[values[name] for values in mine] for name in ("accuracy", "angle", "margin")]
        cells = "".join(f"{f'{np.mean(column):.2f} ± {plots.spread(column):.2f}':>18}" for column in columns)
        lines.append(f"{label(method):14}{cells}{len(mine):>7}")
    return "\n".join([*lines, f"{'largest possible':>48}{LARGEST_MARGIN:>12.2f}"])


def draw(axes: Axes, aggregation: str, shrinkage: str, c: float, epochs: int = 20) -> None:
    """Train the linear classifier for a few epochs, not stored, and draw its boundary and the test points."""
    recipe = make_recipe("toy", "linear", f"{aggregation}_{shrinkage}", c=c, epochs=epochs)
    model = train(recipe, seed=0, progress=False).model
    title = f"{aggregation}+{shrinkage}".upper() + f", c = {c:.3g}"
    plots.boundary(axes, model, *load_data("toy").test, title)


def explore(epochs: int = 20) -> interactive:
    """Widgets for aggregation, shrinkage and c; each change trains anew and draws the boundary."""

    def show(aggregation: str, shrinkage: str, c: float) -> None:
        _, axes = plt.subplots(figsize=(2.6, 3.2))
        draw(axes, aggregation, shrinkage, c, epochs)
        plt.show()

    slider = FloatLogSlider(value=1, base=2, min=-3, max=3, step=0.5, continuous_update=False, description="c")
    choices = {"aggregation": Dropdown(options=list(AGGREGATION)), "shrinkage": Dropdown(options=list(SHRINKAGE))}
    return interactive(show, **choices, c=slider)
