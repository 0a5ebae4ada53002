"""From a recipe and a seed to a stored run: train, evaluate, store; or load what is stored."""

import platform

import torch
from torch import Tensor, nn

from ammlib import __version__
from ammlib.data.batches import subset
from ammlib.data.datasets import Dataset, load_data
from ammlib.data.registry import DATASETS
from ammlib.margin.processes import is_main
from ammlib.models.community import options_of
from ammlib.models.pretrained import pretrained
from ammlib.models.weights import load_weights, save_weights, weights_digest
from ammlib.training.device import best_device, placed
from ammlib.training.distributed import from_main, main_first
from ammlib.training.evaluate import evaluate
from ammlib.training.prepare import make_regulariser, margin_units, new_model, prepare_data
from ammlib.training.recipes import Recipe, reference_of, stands_for
from ammlib.training.runs import Run, checkpoint_path, load_run, store_run, weights_path
from ammlib.training.train import Training, train


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
        versions={"python": platform.python_version(), "torch": torch.__version__, "ammlib": __version__},
        device=device.type,
        seconds=round(training.seconds, 1),
    )
    if is_main():
        save_weights(weights_path(recipe, seed), weights)
        store_run(run)
        checkpoint_path(recipe, seed).unlink(missing_ok=True)
    return run


def starting_weights(recipe: Recipe, seed: int, num_classes: int, progress: bool = True) -> dict[str, Tensor] | None:
    """The weights that a recipe starts from: none, the community's, or those of its reference."""
    if recipe.start == "scratch":
        return None
    reference = reference_of(recipe) if recipe.start == "reference" else recipe
    if reference.start == "pretrained" and (reference is recipe or reference.epochs == 0):
        like = stands_for(recipe.dataset, recipe.family)
        if options_of(like, recipe.arch) and recipe.weights is None:  # the net may be another, with other shortcuts
            raise ValueError(f"{recipe.key} starts from published weights at scale tuned only, not {recipe.scale}")
        head_seed = None if recipe.dataset == like else seed  # a user's own classes need a head of their own
        return from_main(lambda: pretrained(like, recipe.arch, num_classes, head_seed=head_seed))
    return trained_weights(reference, seed, progress)


def trained_weights(recipe: Recipe, seed: int, progress: bool = True) -> dict[str, Tensor]:
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
