"""Training by a recipe, resumable at any step with bit-identical results on the CPU."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.data.batches import model_input
from ammlib.data.datasets import Dataset
from ammlib.data.folders import make_batches
from ammlib.margin.classifier import as_classes
from ammlib.margin.processes import Shares, is_main, world
from ammlib.training.checkpoint import load_checkpoint, save_checkpoint
from ammlib.training.device import best_device, placed
from ammlib.training.distributed import anywhere, from_main, total, wrapped
from ammlib.training.evaluate import error_rate, shared_margins
from ammlib.training.interrupt import stop_between_steps
from ammlib.training.prepare import (
    learning_rate,
    make_regulariser,
    margin_units,
    new_model,
    prepare_data,
    set_mode,
    trained_parameters,
)
from ammlib.training.recipes import Recipe

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # of logits and labels, which may be none; all have a graph
    "cross_entropy": lambda f, y: F.cross_entropy(f, y, reduction="mean" if len(y) else "sum"),
    "none": lambda f, y: f[:0].sum(),
}
CHECKPOINT_SECONDS = 120.0
PROGRESS = ("epoch", "step", "sums", "history", "seconds")  # of a training, beside its tensors
ENTRIES = 100  # a history has at most twice as many: longer trainings evaluate every few epochs only
WATCHED = 200  # test images whose margin is followed from epoch to epoch


class TrainingError(RuntimeError):
    """A training that cannot go on."""


class Training:
    """One run in progress: the model, the optimiser, and how far they have come."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        data: Dataset,
        weights: dict[str, Tensor] | None = None,
        checkpoint: Path | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.recipe, self.seed, self.checkpoint = recipe, seed, checkpoint
        self.device = best_device() if device is None else device
        x, y, self.x_test, self.y_test = (
            tensor.to(self.device) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
        )
        self.batches = make_batches(x, y, recipe.batch, seed, crop=recipe.crop, flip=recipe.flip)
        self.model = placed(new_model(recipe, seed, data.num_classes), self.device)
        if weights is not None:
            self.model.load_state_dict(weights)
        self.parameters = trained_parameters(self.model, recipe.freeze_bn)
        self.optimizer = torch.optim.SGD(self.parameters, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)
        self.regulariser = make_regulariser(recipe)
        self.wrapped = wrapped(self.model)
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}  # over the steps since the last entry of the history
        self.history: list[dict[str, Any]] = []
        self.seconds, self.saved = 0.0, time.monotonic()
        self.restore()

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.recipe.to_dict(), "source": None, "seed": self.seed}

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        path = self.checkpoint
        state = from_main(lambda: load_checkpoint(path, self.identity)) if path else None
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            for name in PROGRESS:
                setattr(self, name, state[name])

    def save(self) -> None:
        """Store everything that the next step depends on."""
        self.saved = time.monotonic()
        if self.checkpoint is None or not is_main():
            return
        state = {name: getattr(self, name) for name in PROGRESS}
        state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        save_checkpoint(self.checkpoint, self.identity, state)

    def run(self, progress: bool = True) -> None:
        """Train to the end; Ctrl-C ends after the present step, with a checkpoint to go on from."""
        steps, done = self.recipe.epochs * len(self.batches), self.epoch * len(self.batches) + self.step
        shown = progress and is_main()
        bar = tqdm(total=steps, initial=done, desc=self.recipe.key, unit="step", disable=not shown)
        with bar, stop_between_steps() as stopping:
            while self.epoch < self.recipe.epochs:
                for x, y in self.batches.epoch(self.epoch, start=self.step):
                    started = time.monotonic()
                    self.take_step(x, y)
                    self.seconds += time.monotonic() - started
                    bar.update()
                    self.show(bar)
                    stop = anywhere(stopping())  # all processes at the same step, or they would wait for each other
                    if stop or time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                        self.save()
                    if stop:
                        raise KeyboardInterrupt
                self.end_epoch()
            if anywhere(stopping()):  # asked for during the last evaluation
                raise KeyboardInterrupt

    def take_step(self, x: Tensor, y: Tensor) -> None:
        """One step of SGD on the loss and the regulariser (eq. 7)."""
        set_mode(self.model, self.recipe.freeze_bn)
        logits, shares = self.wrapped(x), Shares(len(x))
        self.require_finite(logits, self.epoch + 1, self.step + 1)  # before the regulariser, which knows no steps
        loss = LOSSES[self.recipe.loss](logits, y) * shares.weight
        term = None
        if self.regulariser is not None:
            term = self.regulariser(self.model, x, y, logits=logits)
        objective = loss if term is None else loss + term
        self.require_finite(objective, self.epoch + 1, self.step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, self.epoch)
        self.optimizer.zero_grad()
        objective.backward()
        if self.recipe.loss == "none" and not self.regulariser.last.kept:
            self.optimizer.zero_grad()  # there is no gradient, so momentum does not go on either
        nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_grad)
        self.optimizer.step()
        self.step += 1
        self.count(shares.total, y, logits, loss, term)

    def require_finite(self, values: Tensor, epoch: int, step: int) -> None:
        if values.isfinite().all():
            return
        kept = self.checkpoint is not None and self.checkpoint.exists()
        hint = f"; the last good state is kept in {self.checkpoint}" if kept else ""
        where = f"epoch {epoch}, step {step}"
        raise TrainingError(f"{self.recipe.key}, seed {self.seed}: the loss is not finite at {where}{hint}")

    def count(self, samples: int, y: Tensor, logits: Tensor, loss: Tensor, term: Tensor | None) -> None:
        """Add what the step did to the sums for the history."""
        wrong = int((as_classes(logits.detach()).argmax(1) != y).sum())
        wrong, loss, reg = total(wrong, float(loss.detach()), 0.0 if term is None else float(term.detach()))
        sums = {"steps": 1, "samples": samples, "loss": loss / world() * samples, "wrong": int(wrong)}
        if self.regulariser is not None:
            last = self.regulariser.last
            sums |= {"regulariser": reg / world() * samples, "kept": last.kept}
            if not math.isnan(last.margin):
                sums |= {"margin": last.margin, "steps_with_margin": 1}
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def mean(self, name: str, per: str = "samples") -> float | None:
        return self.sums[name] / self.sums[per] if name in self.sums else None

    def show(self, bar: tqdm) -> None:
        """Error, regulariser and kept samples so far beside the progress bar; its time left is of the run."""
        if bar.disable:
            return
        values = {"epoch": f"{self.epoch + 1}/{self.recipe.epochs}", "error": f"{100 * self.mean('wrong'):.2f}%"}
        if "regulariser" in self.sums:
            values |= {"reg": f"{self.mean('regulariser'):.3f}", "kept": f"{self.mean('kept', per='steps'):.1f}"}
        bar.set_postfix(values, refresh=False)

    @property
    def every(self) -> int:
        """How many epochs lie between two entries of the history."""
        return max(1, self.recipe.epochs // ENTRIES)

    @property
    def watched(self) -> int:
        """How many test images have their margin followed."""
        return min(WATCHED, max(1, (self.recipe.margin_size or len(self.x_test)) // 20))

    def end_epoch(self) -> None:
        """Evaluate, write the history and store a checkpoint, every epoch or every few of many."""
        self.epoch, self.step = self.epoch + 1, 0
        if self.epoch % self.every and self.epoch < self.recipe.epochs:
            return
        self.model.eval()
        images = model_input(self.x_test[: self.watched])
        with torch.no_grad():
            self.require_finite(self.model(images), self.epoch, len(self.batches))
        std = margin_units(self.recipe)
        self.history.append(
            {
                "epoch": self.epoch,
                "lr": learning_rate(self.recipe, self.epoch - 1),
                "loss": self.mean("loss"),
                "train_error": 100 * self.mean("wrong"),
                "regulariser": self.mean("regulariser"),
                "kept": self.mean("kept", per="steps"),
                "kept_margin": self.mean("margin", per="steps_with_margin"),
                "test_error": error_rate(self.model, self.x_test, self.y_test),
                "test_margin": float(shared_margins(self.model, images, progress=False, std=std).norm.mean()),
            }
        )
        self.sums = {}
        self.save()


def train(
    recipe: Recipe,
    seed: int,
    *,
    weights: dict[str, Tensor] | None = None,
    data: Dataset | None = None,
    checkpoint: Path | None = None,
    device: torch.device | None = None,
    progress: bool = True,
) -> Training:
    """Train the model of a recipe from `weights` or from its initialisation; `.model` and `.history` are the results.

    `data`, if given, is what `prepare_data(recipe)` makes. With a `checkpoint` path the state is stored with each entry
    of the history, every two minutes and on Ctrl-C, and a later call goes on from there.
    """
    if weights is None and recipe.start != "scratch":
        raise ValueError(f"{recipe.key} starts from {recipe.start} weights: give them, or use `run_or_load`")
    data = prepare_data(recipe) if data is None else data
    training = Training(recipe, seed, data, weights, checkpoint, device)
    training.run(progress)
    training.model.eval()
    return training
