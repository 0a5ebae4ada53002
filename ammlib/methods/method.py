"""What a method can change of a training; `training/train.py` calls it and knows no method by name."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ammlib.margin.parts import Report
from ammlib.margin.processes import Shares
from ammlib.methods.losses import cross_entropy


class Task(NamedTuple):
    """What is known of a training before it begins."""

    samples: int  # to train on
    classes: int
    shape: tuple[int, ...]  # of a sample
    steps: int  # of the whole training


class Batch(NamedTuple):
    """What a step is given."""

    x: Tensor
    y: Tensor
    rows: Tensor | None = None  # of its samples among all that are trained on
    step: int = 0  # how many came before


def of_batch(x: Tensor, draw: Callable[[int], Tensor]) -> Tensor:
    """What is drawn for so many samples, for those of the batch that are here: one process would draw the same."""
    shares = Shares(len(x), x.device)
    return shares.own(draw(shares.total))


class Method(nn.Module):
    """Plain training: a method is a subclass that replaces what it is about, and a row in registry.py.

    Its state is its buffers, which checkpoints hold. What it draws at random, by torch's usual functions, is a function
    of (seed, epoch, step): training seeds them before each step.
    """

    criterion: Callable[[Tensor, Tensor], Tensor] = staticmethod(cross_entropy)  # a recipe may name another

    def adapt(self, model: nn.Module) -> nn.Module:
        """The model that is trained; in eval mode it has to be deterministic, so that it has margins."""
        return model

    def begin(self, model: nn.Module, task: Task) -> None:
        """Make the state that the method needs, before the first step."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The optimiser's parameter groups; each may have a `weight_decay` of its own."""
        return [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad]}]

    def disturb(self, batch: Batch) -> Batch:
        """The batch with the images and labels that are trained on."""
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss of the samples, and their logits."""
        logits = model(batch.x)
        return self.criterion(logits, batch.y), logits

    def term(self, model: nn.Module, batch: Batch, logits: Tensor) -> Tensor | None:
        """What is minimised beside the loss."""
        return None

    def after_step(self, model: nn.Module) -> None:
        """Change the weights that the optimiser has just set."""

    @property
    def last(self) -> Report | None:
        """Which samples the last `term` kept, if it has any of its own; for the history."""
        return None


class Regularised(Method):
    """Training with a regulariser that is called like AMM."""

    def __init__(self, regulariser: nn.Module) -> None:
        super().__init__()
        self.regulariser = regulariser

    def term(self, model: nn.Module, batch: Batch, logits: Tensor) -> Tensor:
        return self.regulariser(model, batch.x, batch.y, logits=logits)

    @property
    def last(self) -> Report | None:
        return getattr(self.regulariser, "last", None)
