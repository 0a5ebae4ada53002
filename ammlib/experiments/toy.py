"""The toy experiment (section 3.3.3, Fig. 1): what its linear classifiers achieve, and a toy to play with."""

import math
from collections.abc import Sequence
from statistics import median

import matplotlib.pyplot as plt
from ipywidgets import Dropdown, FloatLogSlider, interactive
from matplotlib.axes import Axes
from torch import nn

from ammlib.data.datasets import load_data
from ammlib.margin.margins import margins
from ammlib.margin.parts import AGGREGATION, SHRINKAGE
from ammlib.report.figures.plane import boundary
from ammlib.report.tables import aligned
from ammlib.training.execute import trained_model
from ammlib.training.prepare import new_model
from ammlib.training.recipes import label, make_recipe
from ammlib.training.runs import Run
from ammlib.training.train import train

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
    """Of each method the median over the seeds and the worst of them, as text."""
    cells = [("", "test accuracy, %", "worst", "angle of w, °", "margin", "worst", "separated")]
    for method in dict.fromkeys(run.recipe.method for run in runs):
        mine = [achieved(trained_model(run.recipe, run.seed)) for run in runs if run.recipe.method == method]
        accuracy, angle, margin = ([values[name] for values in mine] for name in ("accuracy", "angle", "margin"))
        separated = f"{sum(value == 100 for value in accuracy)} of {len(mine)} seeds"
        numbers = (median(accuracy), min(accuracy), median(angle), median(margin), min(margin))
        cells.append((label(method), *(f"{number:.2f}" for number in numbers), separated))
    return aligned([*cells, ("largest possible", "100", "", "", f"{LARGEST_MARGIN}", "", "")])


def turns(runs: Sequence[Run]) -> str:
    """Where each run started and ended: angle of w and test accuracy."""
    cells = [("", "seed", "angle of w at first", "accuracy", "at the end", "accuracy")]
    for run in runs:
        ends = achieved(new_model(run.recipe, run.seed)), achieved(trained_model(run.recipe, run.seed))
        numbers = [text for end in ends for text in (f"{end['angle']:.0f}°", f"{end['accuracy']:.0f} %")]
        cells.append((label(run.recipe.method), str(run.seed), *numbers))
    return aligned(cells)


def draw(axes: Axes, aggregation: str, shrinkage: str, c: float, epochs: int = 20) -> None:
    """Train the linear classifier for a few epochs, not stored, and draw its boundary and the test points."""
    recipe = make_recipe("toy", "linear", f"{aggregation}_{shrinkage}", c=c, epochs=epochs)
    model = train(recipe, seed=0, progress=False).model
    title = f"{aggregation}+{shrinkage}".upper() + f", c = {c:.3g}"
    boundary(axes, model, *load_data("toy").test, title)


def explore(epochs: int = 20) -> interactive:
    """Widgets for aggregation, shrinkage and c; each change trains anew and draws the boundary."""

    def show(aggregation: str, shrinkage: str, c: float) -> None:
        _, axes = plt.subplots(figsize=(2.6, 3.2))
        draw(axes, aggregation, shrinkage, c, epochs)
        plt.show()

    slider = FloatLogSlider(value=1, base=2, min=-3, max=3, step=0.5, continuous_update=False, description="c")
    choices = {"aggregation": Dropdown(options=list(AGGREGATION)), "shrinkage": Dropdown(options=list(SHRINKAGE))}
    return interactive(show, **choices, c=slider)
