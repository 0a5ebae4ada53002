"""The toy experiment (section 3.3.3, Fig. 1): what its linear classifiers achieve, and a toy to play with."""

import math
from collections.abc import Sequence
from statistics import median

import torch
from torch import nn

from ammlib.data.datasets import load_data
from ammlib.margin.amm import AMM
from ammlib.margin.margins import margins
from ammlib.report.tables import aligned
from ammlib.training.execute import trained_model
from ammlib.training.prepare import new_model
from ammlib.training.recipes import label, make_recipe
from ammlib.training.runs import Run

LARGEST_MARGIN = 0.99  # the rectangles are 1.98 apart


def achieved(model: nn.Module) -> dict[str, float]:
    """Test accuracy in %, angle of w to the x1 axis in degrees, and the smallest distance of a test point.

    The distance is negative where a point lies on the wrong side.
    """
    found = margins(model, load_data("toy").test, progress=False, steps=1, overshoot=0)  # exact for a linear f
    correct = found.correct
    assert correct is not None  # labels were given
    signed = found.norm.where(correct, -found.norm)
    w = next(module for module in model.modules() if isinstance(module, nn.Linear)).weight.detach().squeeze(0)
    angle = math.degrees(math.atan2(float(w[1]), float(w[0])))
    return {"accuracy": 100 * float(correct.float().mean()), "angle": angle, "margin": float(signed.min())}


def table(runs: Sequence[Run]) -> str:
    """Of each method the median over the seeds and the worst of them, as text."""
    cells: list[tuple[str, ...]] = [("", "test accuracy, %", "worst", "angle of w, °", "margin", "worst", "separated")]
    for method in dict.fromkeys(run.recipe.method for run in runs):
        mine = [achieved(trained_model(run.recipe, run.seed)) for run in runs if run.recipe.method == method]
        accuracy, angle, margin = ([values[name] for values in mine] for name in ("accuracy", "angle", "margin"))
        separated = f"{sum(value == 100 for value in accuracy)} of {len(mine)} seeds"
        numbers = (median(accuracy), min(accuracy), median(angle), median(margin), min(margin))
        cells.append((label(method), *(f"{number:.2f}" for number in numbers), separated))
    return aligned([*cells, ("largest possible", "100", "", "", f"{LARGEST_MARGIN}", "", "")])


def turns(runs: Sequence[Run]) -> str:
    """Where each run started and ended: angle of w and test accuracy."""
    cells: list[tuple[str, ...]] = [("", "seed", "angle of w at first", "accuracy", "at the end", "accuracy")]
    for run in runs:
        ends = achieved(new_model(run.recipe, run.seed)), achieved(trained_model(run.recipe, run.seed))
        numbers = [text for end in ends for text in (f"{end['angle']:z.0f}°", f"{end['accuracy']:.0f} %")]
        cells.append((label(run.recipe.method), str(run.seed), *numbers))
    return aligned(cells)


def train_briefly(
    aggregation: str, shrinkage: str, lam: float, c: float, d: float, seed: int, steps: int = 120
) -> nn.Module:
    """The linear classifier after some steps of the paper's protocol, as fast as they go and not stored."""
    recipe = make_recipe("toy", "linear", f"{aggregation}_{shrinkage}")
    model, amm = new_model(recipe, seed), AMM(aggregation, shrinkage, lam, c, d, screen=None, steps=1)
    optimizer = torch.optim.SGD(model.parameters(), recipe.lr, recipe.momentum)
    x, y = load_data("toy").train
    for batch in torch.randint(len(x), (steps, recipe.batch), generator=torch.Generator().manual_seed(seed)):
        optimizer.zero_grad()
        amm(model, x[batch], y[batch]).backward()
        optimizer.step()
    return model
