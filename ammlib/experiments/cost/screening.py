"""Screening's promise over a whole training run, by the exact method.

The MNIST MLP is trained by its recipe with screen=None; every few steps the screened regulariser is called too, with
the same weights and batch, and compared: which samples it keeps, and the cosine between the gradients of the two
terms. The final errors are those of the stored runs with and without screening.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ammlib.margin.amm import AMM
from ammlib.report.cost import screened_and_exact
from ammlib.training.execute import finish
from ammlib.training.prepare import prepare_data
from ammlib.training.runs import load_run
from ammlib.training.train import Training


class Recording(AMM):
    """Remembers which samples the last call kept."""

    @property
    def kept(self) -> Tensor:
        assert self.columns is not None  # there was a call
        return self.columns[3].nonzero().squeeze(1)


def agreement(model: nn.Module, exact: Recording, screened: Recording, terms: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """How the last call of a screened regulariser agrees with that of the exact one, which gave these two terms."""
    rows, rows_screened = set(exact.kept.tolist()), set(screened.kept.tolist())
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = (torch.autograd.grad(t, weights, retain_graph=True, materialize_grads=True) for t in terms)
    full, fast = (torch.cat([g.flatten() for g in gradients]).double() for gradients in found)
    assert exact.last is not None and screened.last is not None  # both were called
    both = cosine(full, fast) if full.any() or fast.any() else None  # None: all clamped
    return {
        "exact": len(rows),
        "found": len(rows & rows_screened),
        "added": len(rows_screened - rows),
        "cosine": both,
        "misclassified": exact.last.misclassified,
        "attacked": screened.last.attacked,
    }


def cosine(a: Tensor, b: Tensor) -> float:
    """Of the angle between two vectors of any size; 0 if one of them is zero."""
    a, b = (v / v.abs().max().clamp(min=torch.finfo(v.dtype).tiny) for v in (a, b))  # so that no square underflows
    return float(F.cosine_similarity(a, b, dim=0))


class Compared(Recording):
    """The exact regulariser that, every few calls, is compared with the screened one."""

    def __init__(self, every: int, **options: Any) -> None:
        super().__init__(**{**options, "screen": None})
        self.every, self.calls = every, 0
        self.notes: list[dict[str, Any]] = []
        self.other = Recording(**{**options, "screen": "auto"})

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, logits: Tensor | None = None) -> Tensor:
        term = super().forward(model, x, y, logits)
        if self.calls % self.every == 0:
            terms = term, self.other(model, x, y, logits)
            self.notes.append({"step": self.calls, **agreement(model, self, self.other, terms)})
        self.calls += 1
        return term


def measure(
    archs: Iterable[str] = ("mlp",), repeats: int = 50, dataset: str = "mnist", **changes: Any
) -> dict[str, Any]:
    """Train the exact run of a net from its beginning, compare every `repeats` steps, and store it if it is new."""
    return {"every": repeats, "nets": {arch: measure_net(dataset, arch, repeats, **changes) for arch in archs}}


def measure_net(dataset: str, arch: str, every: int, **changes: Any) -> dict[str, Any]:
    """All comparisons along one run, as columns."""
    recipe = screened_and_exact(dataset, arch, **changes)["exact"]
    data = prepare_data(recipe)
    training = Training(recipe, 0, data)  # without a checkpoint, which would not hold the comparisons
    training.method.regulariser = compared = Compared(every, **recipe.arguments)
    training.run()
    if load_run(recipe, 0) is None:
        finish(training, data)
    columns = {name: [note[name] for note in compared.notes] for name in compared.notes[0]}
    return {"dataset": dataset, "arch": arch, "changes": changes, "batch": recipe.batch, **columns}
