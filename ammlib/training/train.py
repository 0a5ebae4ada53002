"""Training by a recipe, resumable at any step with bit-identical results on the CPU."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.data.batches import seeded
from ammlib.data.datasets import Dataset
from ammlib.data.folders import at_once, make_batches
from ammlib.margin.classifier import as_classes
from ammlib.margin.processes import Shares, anywhere, is_main, world
from ammlib.methods.method import Batch, Task
from ammlib.training.checkpoint import load_checkpoint, save_checkpoint, usable
from ammlib.training.device import best_device, placed
from ammlib.training.distributed import from_main, total, wrapped
from ammlib.training.evaluate import error_rate, shared_margins
from ammlib.training.interrupt import stop_between_steps
from ammlib.training.logs import Callback
from ammlib.training.prepare import (
    learning_rate,
    make_method,
    margin_units,
    new_model,
    prepare_data,
    set_mode,
    trained_parameters,
)
from ammlib.training.recipes import Recipe
from ammlib.training.sums import Sums, seems_dead

CHECKPOINT_SECONDS = 120.0
PROGRESS = ("epoch", "step", "sums", "history", "seconds")  # of a training, beside its tensors
LATER = ("times", "warnings")  # likewise, but not in the checkpoints of earlier versions
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
        callback: Callback | None = None,
    ) -> None:
        self.started = now()
        self.callback = callback if callback and is_main() else lambda *_: None
        self.recipe, self.seed, self.data, self.checkpoint = recipe, seed, data, checkpoint
        self.device = best_device() if device is None else device
        x, y = data.x_train.to(self.device), data.y_train.to(self.device)
        self.x_test, self.y_test = data.x_test.to(self.device), data.y_test.to(self.device)
        self.batches = make_batches(x, y, recipe.batch, seed, crop=recipe.crop, flip=recipe.flip)
        self.model = placed(new_model(recipe, seed, data.num_classes, weights), self.device)
        self.parameters = trained_parameters(self.model, recipe.freeze_bn)
        self.method = make_method(recipe).to(self.device)
        task = Task(len(y), data.num_classes, tuple(x.shape[1:]), recipe.epochs * len(self.batches))
        with seeded(self.device, "begin", seed):
            self.method.begin(self.model, task)
        groups = self.method.groups(self.model)
        self.optimizer = torch.optim.SGD(groups, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)
        self.wrapped = wrapped(self.model)
        self.epoch, self.step = 0, 0
        self.sums = Sums()  # of the steps since the last entry of the history
        self.history: list[dict[str, Any]] = []
        self.seconds, self.saved = 0.0, time.monotonic()
        self.times = (0.0, 0.0)  # wall clock and CPU, until `started`
        self.warnings: list[str] = []
        self.restore()

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.recipe.to_dict(), "source": None, "seed": self.seed, "data": self.data.digest}

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        path = self.checkpoint
        state = from_main(lambda: load_checkpoint(path, self.identity)) if path else None
        if path is None or state is None:
            return
        with usable(path):
            if not (0 <= state["epoch"] <= self.recipe.epochs and 0 <= state["step"] <= len(self.batches)):
                raise ValueError(f"epoch {state['epoch']}, step {state['step']} is not of this training")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.method.load_state_dict(state.get("method", {}))  # older ones have none
            if not all(weight.isfinite().all() for weight in self.model.state_dict().values()):
                raise ValueError("weights are not finite")
            for name in PROGRESS + tuple(name for name in LATER if name in state):
                setattr(self, name, state[name])
            self.sums = Sums(self.sums)

    def save(self) -> None:
        """Store everything that the next step depends on."""
        self.saved = time.monotonic()
        if self.checkpoint is None or not is_main():
            return
        state = {name: getattr(self, name) for name in PROGRESS} | {"times": self.took(), "warnings": self.warnings}
        state["sums"] = dict(self.sums)
        for name in ("model", "optimizer", "method"):
            state[name] = getattr(self, name).state_dict()
        save_checkpoint(self.checkpoint, self.identity, state)

    def took(self) -> tuple[float, float]:
        """Seconds of wall clock and of CPU so far, those of earlier processes included."""
        wall, cpu = (before + end - start for before, start, end in zip(self.times, self.started, now(), strict=True))
        return wall, cpu

    def run(self, progress: bool = True) -> None:
        """Train to the end; Ctrl-C ends after the present step, with a checkpoint to go on from."""
        steps = self.recipe.epochs * len(self.batches)
        shown = progress and is_main()
        bar = tqdm(total=steps, initial=self.steps_done, desc=self.recipe.key, unit="step", disable=not shown)
        with bar, stop_between_steps() as stopping:
            while self.epoch < self.recipe.epochs:
                indices = self.batches.indices(self.epoch, start=self.step)
                for (x, y), rows in zip(self.batches.epoch(self.epoch, start=self.step), indices, strict=True):
                    started = time.monotonic()
                    self.take_step(x, y, rows)
                    self.seconds += time.monotonic() - started
                    bar.update()
                    self.show(bar)
                    stop = self.anywhere(stopping())  # all processes stop at the same step, or they would wait
                    if stop or time.monotonic() - self.saved > CHECKPOINT_SECONDS:
                        self.save()
                    if stop:
                        raise KeyboardInterrupt
                self.end_epoch()
            if self.anywhere(stopping()):  # asked for during the last evaluation
                raise KeyboardInterrupt

    def anywhere(self, flag: bool) -> bool:
        """Is it so in any process?"""
        return anywhere(torch.tensor(flag, device=self.device))

    @property
    def steps_done(self) -> int:
        return self.epoch * len(self.batches) + self.step

    def take_step(self, x: Tensor, y: Tensor, rows: Tensor | None = None) -> None:
        """One step of SGD on the method's loss and term (eq. 7), whose noise is a function of (seed, epoch, step)."""
        set_mode(self.model, self.recipe.freeze_bn)
        shares = Shares(len(x), x.device)
        with seeded(self.device, "step", self.seed, self.epoch, self.step):
            batch = self.method.disturb(Batch(x, y, rows, self.steps_done))
            loss, logits = self.method.loss(self.wrapped, batch)
            self.require_finite(logits, self.epoch + 1, self.step + 1)  # before the term, which knows no steps
            loss = loss * shares.weight
            term = self.method.term(self.model, batch, logits)
        objective = loss if term is None else loss + term
        self.require_finite(objective, self.epoch + 1, self.step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, self.epoch)
        if term is not None and not self.sums.get("pulls"):  # until the first that has one
            self.sums["pulls"] = self.anywhere(self.has_gradient(term))
        self.optimizer.zero_grad()
        torch.autograd.backward(objective)
        if self.recipe.loss == "none" and (last := self.method.last) is not None and not last.kept:
            self.optimizer.zero_grad()  # there is no gradient, so momentum does not go on either
        length = nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_grad)
        self.require_finite(length, self.epoch + 1, self.step + 1)  # of the gradient
        self.optimizer.step()
        self.method.after_step(self.model)
        self.step += 1
        self.count(shares.total, y, logits, loss, term)

    def has_gradient(self, term: Tensor) -> bool:
        if not term.requires_grad:
            return False
        found = torch.autograd.grad(term, self.parameters, retain_graph=True, allow_unused=True)
        return any(bool(gradient.any()) for gradient in found if gradient is not None)

    def require_finite(self, values: Tensor, epoch: int, step: int) -> None:
        if values.isfinite().all():
            return
        kept = self.checkpoint is not None and self.checkpoint.exists()
        hint = f"; the last good state is kept in {self.checkpoint}" if kept else ""
        where = f"epoch {epoch}, step {step}"
        raise TrainingError(f"{self.recipe.key}, seed {self.seed}: the loss is not finite at {where}{hint}")

    def count(self, samples: int, y: Tensor, logits: Tensor, loss: Tensor, term: Tensor | None) -> None:
        """Add what the step did to the sums for the history."""
        mistakes = (as_classes(logits.detach()).argmax(1) != y).sum()
        terms = [mistakes, loss.detach(), torch.zeros_like(loss) if term is None else term.detach()]
        wrong, mean_loss, mean_term = total(torch.stack([value.double() for value in terms]))
        found = None if term is None else mean_term / world()
        step = Sums.of_step(samples, int(wrong), mean_loss / world(), found, self.method.last)
        self.sums.add(step)
        self.callback("step", self.steps_done, step.means())

    def show(self, bar: tqdm) -> None:
        """Error, regulariser and kept samples so far beside the progress bar; its time left is of the run."""
        if not bar.disable:
            dead = {"looks dead": self.warnings[0]} if self.warnings else {}
            epoch = f"{self.epoch + 1}/{self.recipe.epochs}"
            bar.set_postfix({"epoch": epoch, **self.sums.line(), **dead}, refresh=False)

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
        images = at_once(self.x_test[: self.watched])
        with torch.no_grad():
            self.require_finite(self.model(images), self.epoch, len(self.batches))
        std, means = margin_units(self.recipe), self.sums.means()
        entry = {
            "epoch": self.epoch,
            "lr": learning_rate(self.recipe, self.epoch - 1),
            **means,
            "test_error": error_rate(self.model, self.x_test, self.y_test),
            "test_margin": float(shared_margins(self.model, images, progress=False, std=std).norm.mean()),
        }
        self.history.append(entry)
        if not self.warnings and (dead := seems_dead(entry, self.y_test, bool(self.sums.get("pulls")))):
            self.warnings = [dead]  # once
        self.sums = Sums()
        self.save()
        self.callback("epoch", self.epoch * len(self.batches), entry)


def now() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def train(
    recipe: Recipe,
    seed: int,
    *,
    weights: dict[str, Tensor] | None = None,
    data: Dataset | None = None,
    checkpoint: Path | None = None,
    device: torch.device | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Training:
    """Train the model of a recipe from `weights` or from its initialisation; `.model` and `.history` are the results.

    `data`, if given, is what `prepare_data(recipe)` makes. With a `checkpoint` path the state is stored with each entry
    of the history, every two minutes and on Ctrl-C, and a later call goes on from there.
    `callback(kind, steps, values)` is called after each "step" and each "epoch": steps taken so far, values as a dict.
    """
    if weights is None and recipe.start != "scratch":
        raise ValueError(f"{recipe.key} starts from {recipe.start} weights: give them, or use `run_or_load`")
    data = prepare_data(recipe) if data is None else data
    training = Training(recipe, seed, data, weights, checkpoint, device, callback)
    training.run(progress)
    training.model.eval()
    return training
