"""From a recipe and a seed to a stored run: train, evaluate, store; or load what is stored."""

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from ammlib import __version__
from ammlib.data.batches import subset
from ammlib.data.datasets import Dataset, load_data, shape_of
from ammlib.data.files import locked, require_writable
from ammlib.data.folders import make_batches
from ammlib.data.registry import DATASETS
from ammlib.data.sources import DataError
from ammlib.margin.processes import is_main, world
from ammlib.models.community import options_of
from ammlib.models.pretrained import pretrained
from ammlib.models.weights import load_weights, save_weights, weights_digest
from ammlib.training.checkpoint import before, remove_checkpoint, weights_in
from ammlib.training.device import best_device, placed
from ammlib.training.distributed import DistributedError, from_main, main_first
from ammlib.training.evaluate import evaluate
from ammlib.training.logs import Callback
from ammlib.training.prepare import make_method, margin_units, new_model, prepare_data
from ammlib.training.recipes import Recipe, reference_of, stands_for
from ammlib.training.runs import Run, checkpoint_path, load_run, run_path, store_run, weights_path
from ammlib.training.train import Training, train


def run_or_load(
    recipe: Recipe, seed: int, *, force: bool = False, progress: bool = True, callback: Callback | None = None
) -> Run:
    """The stored run of this recipe and seed; otherwise (or with `force`) train, evaluate and store it.

    A training by force that was stopped goes on.
    """
    stored = None if force else settled(recipe, seed)
    return stored or execute(recipe, seed, force=force, progress=progress, callback=callback)


def stored_run(recipe: Recipe, seed: int) -> Run | None:
    """The stored run of this recipe and seed, if there is one; an error if the user's own data have changed since."""
    run = load_run(recipe, seed)
    if run is None or run.data is None or recipe.dataset in DATASETS:  # whose sums are checked when they are read
        return run
    try:
        data = load_data(recipe.dataset)
    except ValueError:  # no longer there
        return run
    if prepare_data(recipe, data).digest != run.data:
        advice = "give the new data another name, or train anew with --force"
        raise DataError(f"{run_path(recipe, seed)} is of other data than {recipe.dataset} holds now; {advice}")
    return run


def execute(
    recipe: Recipe, seed: int, *, force: bool = False, progress: bool = True, callback: Callback | None = None
) -> Run:
    """Train by the recipe, going on from a checkpoint unless `force`; then evaluate and store run and weights."""
    checkpoint = checkpoint_path(recipe, seed)
    with main_first():
        device, data = best_device(), prepare_data(recipe)
    margin_rows(recipe, data), make_method(recipe)  # what is impossible is refused before any training
    require_fit(recipe, seed, data)
    with alone(recipe, seed):
        if not force and (done := from_main(lambda: finished(recipe, seed))):  # by whom this process has waited for
            return done
        if force and is_main():
            remove_checkpoint(checkpoint)
        weights = starting_weights(recipe, seed, data.num_classes, progress)
        training = train(
            recipe,
            seed,
            weights=weights,
            data=data,
            checkpoint=checkpoint,
            device=device,
            progress=progress,
            callback=callback,
        )
        return finish(training, data, progress)


def require_fit(recipe: Recipe, seed: int, data: Dataset) -> None:
    """Raise unless the net takes the images, and they can be cropped as the recipe says."""
    make_batches(data.x_train[:1], data.y_train[:1], recipe.batch, seed=0, crop=recipe.crop, flip=recipe.flip)
    shape = tuple(data.x_train.shape[1:])
    try:
        new_model(recipe, seed, data.num_classes).eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        found, usual = ("x".join(map(str, s)) for s in (shape, shape_of(recipe.family)))
        raise DataError(f"images of {recipe.dataset} are {found}; {recipe.arch} takes {usual}") from error


@contextmanager
def alone(recipe: Recipe, seed: int) -> Iterator[None]:
    """No other process trains this run at the same time, and all folders that it needs can be written to."""
    if not is_main():
        yield
        return

    def busy(process: str) -> None:
        message = f"{recipe.key}, seed {seed}: process {process} is training it"
        if world() > 1:  # the others cannot wait for hours
            raise DistributedError(f"{message}; start again when it has ended")
        print(f"{message}; waiting for its end", file=sys.stderr)

    for path in (run_path(recipe, seed), weights_path(recipe, seed), checkpoint_path(recipe, seed)):
        require_writable(path.parent)
    with locked(lock_path(recipe, seed), busy):
        yield


def settled(recipe: Recipe, seed: int) -> Run | None:
    """The stored run, unless a training by force was begun anew and stopped, so that there is something to go on with.

    What a process has left that was killed after it had stored the run is removed, unless another trains it anew.
    """
    return from_main(lambda: _settled(recipe, seed))


def _settled(recipe: Recipe, seed: int) -> Run | None:
    run, checkpoint, lock = stored_run(recipe, seed), checkpoint_path(recipe, seed), lock_path(recipe, seed)
    if run is None or not any(path.exists() for path in (checkpoint, before(checkpoint), lock)):
        return run

    def busy(process: str) -> None:
        raise BlockingIOError(f"process {process} is training it")

    with suppress(OSError), locked(lock, busy):  # nor where nothing can be written
        if begun_anew(run):
            return None
        remove_checkpoint(checkpoint)
    return run


def begun_anew(run: Run) -> bool:
    """Is there a checkpoint of a training of this stored run that has other weights than it?"""
    weights = weights_in(checkpoint_path(run.recipe, run.seed))
    return weights is not None and weights_digest(weights) != run.weights


def lock_path(recipe: Recipe, seed: int) -> Path:
    return checkpoint_path(recipe, seed).with_suffix(".lock")


def finished(recipe: Recipe, seed: int) -> Run | None:
    """The run, if it is stored and its weights are too, and it has not been begun anew."""
    run = stored_run(recipe, seed) if weights_path(recipe, seed).exists() else None
    return None if run is None or begun_anew(run) else run


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
    weights, (wall, cpu) = training.model.state_dict(), training.took()
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
        wall_seconds=round(wall, 1),
        cpu_seconds=round(cpu, 1),
        data=data.digest,
        warnings=training.warnings,
    )
    if is_main():
        save_weights(weights_path(recipe, seed), weights)
        store_run(run)
        remove_checkpoint(checkpoint_path(recipe, seed))
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
    weights = from_main(lambda: stored_weights(recipe, seed))
    if weights is None:
        execute(recipe, seed, progress=progress)
        weights = from_main(lambda: stored_weights(recipe, seed))
    assert weights is not None  # they have just been stored
    return weights


def stored_weights(recipe: Recipe, seed: int) -> dict[str, Tensor] | None:
    """The weights of a run if they are at hand; an error if its file says that they are not those."""
    path, run = weights_path(recipe, seed), stored_run(recipe, seed)
    return load_weights(path, None if run is None else run.weights) if path.exists() else None


def trained_model(recipe: Recipe, seed: int, progress: bool = True) -> nn.Module:
    """The trained model of a run, trained now if its weights are not at hand."""
    weights = trained_weights(recipe, seed, progress)
    model = new_model(recipe, seed, load_data(recipe.dataset).num_classes)
    model.load_state_dict(weights)
    return placed(model, best_device()).eval()
