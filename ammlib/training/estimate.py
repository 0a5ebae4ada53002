"""How long trainings will take on this machine."""

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from ammlib.data.batches import model_input
from ammlib.margin.margins import margins
from ammlib.training.evaluate import error_rate
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import Recipe
from ammlib.training.train import Training


def estimate(wanted: Sequence[tuple[Recipe, int]]) -> float:
    """Seconds that trainings and their evaluation take on this machine, from a few steps and images of each kind."""
    seconds, costs = 0.0, {}
    for recipe, seed in wanted:
        training = Training(recipe, seed, prepare_data(recipe))
        tested, batches = len(training.x_test), len(training.batches)
        step, test, margin = costs[recipe.key] = costs.get(recipe.key) or seconds_each(training)
        entries = recipe.epochs // training.every
        seconds += recipe.epochs * batches * step + entries * (tested * test + training.watched * margin)
        seconds += (recipe.margin_size or tested) * margin
    return seconds


def seconds_each(training: Training, steps: int = 5, images: int = 20) -> tuple[float, float, float]:
    """Seconds that a step, the prediction of a test image, and its margin take."""
    first, *batches = islice(training.batches.epoch(0), steps + 1)
    x, y = training.x_test[:images], training.y_test[:images]
    x_margin = model_input(x[: training.watched])
    training.take_step(*first)  # which also warms up
    return (
        duration(lambda: [training.take_step(*batch) for batch in batches]) / max(1, len(batches)),
        duration(lambda: error_rate(training.model, x, y)) / len(x),
        duration(lambda: margins(training.model, x_margin, progress=False)) / len(x_margin),
    )


def duration(task: Callable[[], Any]) -> float:
    started = time.monotonic()
    task()
    return time.monotonic() - started
