"""Stored runs: one JSON file for each recipe and seed, from which every table and figure is made."""

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ammlib.checkpoint import load_weights, save_weights, weights_digest
from ammlib.data import Dataset, load_data, subset
from ammlib.device import best_device, placed
from ammlib.distributed import from_main, main_first
from ammlib.evaluate import evaluate
from ammlib.files import home, write_atomically
from ammlib.margin.processes import is_main
from ammlib.prepare import make_regulariser, margin_units, new_model, prepare_data
from ammlib.pretrained import pretrained
from ammlib.recipes import DATASETS, Recipe, reference_of
from ammlib.train import Training, train


@dataclass(frozen=True)
class Run:
    """A finished run; all but `seconds` is the same each time on the same machine."""

    recipe: Recipe
    seed: int
    metrics: dict[str, float]  # error in %, margin (mean over the test images) and its quantiles
    history: list[dict[str, Any]]  # by epoch
    train_images: int
    weights: str  # SHA-256 of the trained weights
    versions: dict[str, str]
    device: str
    seconds: float  # of training, without evaluation

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "recipe": self.recipe.to_dict()}, indent=1, allow_nan=False) + "\n"


def results_root() -> Path:
    """`$AMMLIB_RESULTS`, or `results/` in the checkout."""
    return Path(os.environ.get("AMMLIB_RESULTS") or home() / "results")


def checkpoints_root() -> Path:
    """`$AMMLIB_CHECKPOINTS`, or `checkpoints/` in the checkout."""
    return Path(os.environ.get("AMMLIB_CHECKPOINTS") or home() / "checkpoints")


def run_name(recipe: Recipe, seed: int) -> str:
    return f"{recipe.key}/{recipe.scale}-{recipe.digest}-s{seed}"


def run_path(recipe: Recipe, seed: int) -> Path:
    return results_root() / "runs" / f"{run_name(recipe, seed)}.json"


def checkpoint_path(recipe: Recipe, seed: int) -> Path:
    return checkpoints_root() / f"{run_name(recipe, seed)}.pt"


def weights_path(recipe: Recipe, seed: int) -> Path:
    """Where the trained weights are or will be: published ones in results/weights, others beside the checkpoints.

    The toy's, three numbers each, are all published.
    """
    name = f"{run_name(recipe, seed)}.safetensors"
    published = results_root() / "weights" / name.replace("/", "-")
    return published if recipe.family == "toy" or published.exists() else checkpoints_root() / name


def load_run(recipe: Recipe, seed: int) -> Run | None:
    """The stored run of exactly this recipe and seed, if there is one."""
    path = run_path(recipe, seed)
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text("utf-8"))
        run = Run(**{**stored, "recipe": Recipe.from_dict(stored["recipe"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to train anew") from error
    return run if run.recipe == recipe and run.seed == seed else None


def store_run(run: Run) -> Path:
    """Write the run file, whole or not at all."""
    path = run_path(run.recipe, run.seed)
    write_atomically(path, lambda file: file.write(run.to_json().encode()))
    return path


def run_or_load(recipe: Recipe, seed: int, *, force: bool = False, progress: bool = True) -> Run:
    """The stored run of this recipe and seed; otherwise (or with `force`) train, evaluate and store it."""
    stored = None if force else from_main(lambda: load_run(recipe, seed))
    return stored or execute(recipe, seed, force=force, progress=progress)


def execute(recipe: Recipe, seed: int, *, force: bool = False, progress: bool = True) -> Run:
    """Train by the recipe, going on from a checkpoint unless `force`; then evaluate and store run and weights."""
    checkpoint = checkpoint_path(recipe, seed)
    if force and is_main():
        checkpoint.unlink(missing_ok=True)
    with main_first():
        device, data = best_device(), prepare_data(recipe)
    margin_rows(recipe, data), make_regulariser(recipe)  # what is impossible is refused before any training
    start = starting_weights(recipe, seed, data.num_classes, progress)
    training = train(recipe, seed, weights=start, data=data, checkpoint=checkpoint, device=device, progress=progress)
    return finish(training, data, progress)


def margin_rows(recipe: Recipe, data: Dataset) -> Tensor | None:
    """The test images whose margin a run reports; None: all."""
    if recipe.margin_size is None:
        return None
    total, own = len(data.x_test), recipe.dataset not in DATASETS  # a user's own may be fewer than the recipe expects
    return subset(total, min(recipe.margin_size, total) if own else recipe.margin_size, recipe.data_seed)


def finish(training: Training, data: Dataset, progress: bool = True) -> Run:
    """Evaluate a training that has come to its end, and store run and weights."""
    recipe, seed, device = training.recipe, training.seed, training.device
    x, y, rows = data.x_test.to(device), data.y_test.to(device), margin_rows(recipe, data)
    known = training.history[-1]["test_error"] if training.history else None
    metrics = evaluate(training.model, x, y, rows, progress, margin_units(recipe), known)
    weights = training.model.state_dict()
    run = Run(
        recipe=recipe,
        seed=seed,
        metrics=metrics,
        history=training.history,
        train_images=len(data.x_train),
        weights=weights_digest(weights),
        versions={"python": platform.python_version(), "torch": torch.__version__, "ammlib": version()},
        device=device.type,
        seconds=round(training.seconds, 1),
    )
    if is_main():
        save_weights(weights_path(recipe, seed), weights)
        store_run(run)
        checkpoint_path(recipe, seed).unlink(missing_ok=True)
    return run


def starting_weights(
    recipe: Recipe, seed: int, num_classes: int, progress: bool = True
) -> dict[str, torch.Tensor] | None:
    """The weights that a recipe starts from: none, the community's, or those of its reference."""
    if recipe.start == "scratch":
        return None
    reference = reference_of(recipe) if recipe.start == "reference" else recipe
    if reference.start == "pretrained" and (reference is recipe or reference.epochs == 0):
        head_seed = None if recipe.dataset == "imagenet" else seed  # a user's own classes need a head of their own
        return from_main(lambda: pretrained(recipe.arch, num_classes, head_seed=head_seed))
    return trained_weights(reference, seed, progress)


def trained_weights(recipe: Recipe, seed: int, progress: bool = True) -> dict[str, torch.Tensor]:
    """The trained weights of a run, trained now if they are not at hand."""
    if not from_main(lambda: weights_path(recipe, seed).exists()):
        execute(recipe, seed, progress=progress)
    return from_main(lambda: load_weights(weights_path(recipe, seed)))


def trained_model(recipe: Recipe, seed: int, progress: bool = True) -> nn.Module:
    """The trained model of a run, trained now if its weights are not at hand."""
    weights = trained_weights(recipe, seed, progress)
    model = new_model(recipe, seed, load_data(recipe.dataset).num_classes)
    model.load_state_dict(weights)
    return placed(model, best_device()).eval()


def version() -> str:
    from ammlib import __version__

    return __version__
