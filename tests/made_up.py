"""Made-up runs for the tests of what is reported, and the lines of a table."""

from ammlib.training.runs import Run, store_run
from ammlib.training.studies import study


def finished(recipe, seed, error, margin):
    metrics = {"error": error, "margin": margin}
    return Run(recipe, seed, metrics, history=[], train_images=1, weights="", versions={}, device="cpu", seconds=0.0)


def store(name, scale, **errors):
    """Runs of a study with these errors, a tenth more from seed to seed, and margins of 1 + error."""
    for recipe, seed in study(name, scale):
        if recipe.method in errors:
            error = errors[recipe.method] + 0.1 * seed
            store_run(finished(recipe, seed, error, 1 + error))


def lines(table):
    return [" ".join(line.split()) for line in table.splitlines()]
