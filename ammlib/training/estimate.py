"""How long trainings will take on this machine."""

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ammlib.data.folders import at_once
from ammlib.margin.margins import margins
from ammlib.training.evaluate import error_rate
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import Recipe
from ammlib.training.train import Training

SECONDS = 5.0  # for all measurements together; the smallest of each kind is made even so


Clock = Callable[[], float]


def core_seconds(wanted: Sequence[tuple[Recipe, int]]) -> float:
    """What trainings and their evaluation take of one core, whatever else runs beside this."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several that wait for each other would count as work
    try:
        return estimate(wanted, time.process_time)
    finally:
        torch.set_num_threads(threads)


def estimate(wanted: Sequence[tuple[Recipe, int]], clock: Clock = time.monotonic) -> float:
    """Seconds that trainings and their evaluation take on this machine, found out in a few seconds.

    Rather too many for large nets: of a small part of a batch AMM follows every sample, of a batch a few.
    """
    nets = {(recipe.dataset, recipe.arch) for recipe, _ in wanted}
    budget = SECONDS / (len({recipe.key for recipe, _ in wanted}) + len(nets))
    seconds, of_step, of_image = 0.0, {}, {}
    for recipe, runs in Counter(recipe for recipe, _ in wanted).items():
        data, net, first = prepare_data(recipe), (recipe.dataset, recipe.arch), slice(recipe.batch)
        training = Training(recipe, 0, replace(data, x_train=data.x_train[first], y_train=data.y_train[first]))
        if recipe.key not in of_step:
            of_step[recipe.key] = seconds_of_step(training, budget, clock)
        if net not in of_image:
            of_image[net] = seconds_of_image(training, budget, clock)
        test, margin = of_image[net]
        steps, tested = recipe.epochs * math.ceil(len(data.x_train) / recipe.batch), len(data.x_test)
        entries = recipe.epochs // training.every
        evaluations = entries * (tested * test + training.watched * margin) + (recipe.margin_size or tested) * margin
        seconds += runs * (steps * of_step[recipe.key] + evaluations)
    return seconds


def seconds_of_step(training: Training, budget: float, clock: Clock) -> float:
    batch = next(training.batches.epoch(0))
    sample = per_item(lambda n: training.take_step(*(column[:n] for column in batch)), len(batch[0]), budget, clock)
    return sample * training.recipe.batch


def seconds_of_image(training: Training, budget: float, clock: Clock) -> tuple[float, float]:
    """Of the prediction of a test image, and of its margin."""
    model, x, y = training.model, training.x_test, training.y_test
    return (
        per_item(lambda n: error_rate(model, x[:n], y[:n]), training.watched, budget / 4, clock),
        per_item(lambda n: margins(model, at_once(x[:n]), progress=False), training.watched, budget * 3 / 4, clock),
    )


def per_item(task: Callable[[int], object], most: int, budget: float, clock: Clock) -> float:
    """Seconds for each item of a task, tried on 2, 8, 32, ... items, up to `most` or as far as the budget goes."""
    deadline, count = clock() + budget, min(2, most)
    with warnings.catch_warnings(action="ignore"):  # that of so few images none was fooled
        took = duration(task, count, clock)
        while count < most and clock() + 4 * took < deadline:
            count = min(4 * count, most)
            took = duration(task, count, clock)
    return took / count


def duration(task: Callable[[int], object], count: int, clock: Clock) -> float:
    started = clock()
    task(count)
    return clock() - started
