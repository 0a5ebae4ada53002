"""Margins and errors of a trained classifier over a whole test set."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from ammlib.classifier import choose, class_logits, frozen
from ammlib.data import ImageFiles, eval_batches, unit
from ammlib.deepfool import deepfool
from ammlib.distributed import Shares, is_main, shard
from ammlib.tight import tight

Images = Tensor | ImageFiles
METHODS = {"deepfool": deepfool, "tight": tight}


@dataclass(frozen=True)
class Margins:
    """Norms of the perturbations of N samples, attacked from their predicted class, in the units of the input."""

    norm: Tensor  # (N,)
    success: Tensor  # (N,) bool: the attack changed the prediction
    steps: Tensor  # (N,) iterations taken
    correct: Tensor | None  # (N,) bool, if labels were given

    def summary(self) -> dict[str, float]:
        """Mean, median and quantiles over all samples, the share fooled, and the error in % if labels were given."""
        values = self.norm.double()
        quantiles = {f"q{round(100 * q):02d}": float(values.quantile(q)) for q in (0.05, 0.25, 0.75, 0.95)}
        error = {} if self.correct is None else {"error": 100 * float((~self.correct).double().mean())}
        return {
            "samples": len(values),
            "mean": float(values.mean()),
            "median": float(values.quantile(0.5)),
            **quantiles,
            "success": float(self.success.double().mean()),
            **error,
        }

    def __repr__(self) -> str:
        return f"Margins({', '.join(f'{key} {value:.4g}' for key, value in self.summary().items())})"


def margins(
    model: nn.Module,
    data: Images | tuple[Tensor, Tensor] | DataLoader,
    *,
    method: str = "deepfool",
    batch_size: int | None = None,
    progress: bool = True,
    std: Sequence[float] | None = None,
    **options: float,
) -> Margins:
    """Margins of images, of (images, labels), or of all batches of a loader, computed where the model lives.

    `method` is "deepfool", the paper's, or "tight", which finds nearer points in four times the time; `options` are
    those of the attack, such as `steps`. With `std`, one number a channel, norms are those of the perturbations divided
    by it, as ImageNet's are reported.
    """
    attack = choose("method", method, METHODS)
    images = data if isinstance(data, Images | DataLoader) else data[0]
    batch_size = usual_batch(images) if batch_size is None and isinstance(images, Images) else batch_size
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    parts: list[tuple[Tensor, ...]] = []
    streamed = isinstance(data, DataLoader)  # perhaps of unknown length
    total = length_hint(data) or None if streamed else math.ceil(len(images) / batch_size)
    for x, y in tqdm(batches(data, batch_size), "margins", total, unit="batch", disable=not progress, leave=False):
        result = attack(model, x.to(device), **options)
        norm = result.norm if std is None else in_units_of(std, result.delta)
        labelled = () if y is None else (result.prediction == y.to(device),)
        parts.append(tuple(t.cpu() for t in (norm, result.success, result.steps, *labelled)))
    if not parts:
        raise ValueError("there are no samples")
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    return Margins(*columns[:3], correct=columns[3] if len(columns) == 4 else None)


def in_units_of(std: Sequence[float], delta: Tensor) -> Tensor:
    """Norms (B,) of perturbations (B, C, ...) whose channels are divided by `std`."""
    return (delta.transpose(1, -1) / delta.new_tensor(std)).flatten(1).norm(dim=1)


def batches(
    data: Images | tuple[Tensor, Tensor] | DataLoader, batch_size: int | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """(x, y) pairs of any of the accepted forms of data; y is None where there are no labels."""
    if not isinstance(data, DataLoader):
        columns = (data,) if isinstance(data, Images) else tuple(data)
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"as many labels as images are needed, got {[len(column) for column in columns]}")
        parts = (column.split(batch_size) for column in columns)
        files = isinstance(columns[0], ImageFiles)  # which give uint8
        data = ((unit(x) if files else x, *y) for x, *y in zip(*parts, strict=True))
    for batch in data:
        x, y = (batch, None) if isinstance(batch, Tensor) else (*batch, None)[:2]
        yield x, y


def shared_margins(
    model: nn.Module,
    *data: Images,
    progress: bool = True,
    **options: Any,
) -> Margins:
    """Margins of images, perhaps with labels, that all processes have; each computes its share."""
    own = margins(model, tuple(map(shard, data)), progress=progress and is_main(), **options)
    labelled = () if own.correct is None else (own.correct,)
    columns = Shares(len(own.norm)).gather(own.norm, own.success, own.steps, *labelled)
    return Margins(*columns[:3], correct=columns[3] if labelled else None)


def as_input(x: Images) -> Images:
    """Images for `margins`: uint8 scaled to [0, 1]; files stay files, which are read batch by batch."""
    return x if isinstance(x, ImageFiles) else unit(x)


def usual_batch(x: Images) -> int:
    """As many images as fit into a few GB of memory with the gradients of a net: 500 small ones, 33 of 224 x 224."""
    return max(1, min(500, 5_000_000 // math.prod(x.shape[1:])))


def error_rate(model: nn.Module, x: Images, y: Tensor) -> float:
    """Test error in % on uint8 images; of several processes each looks at its share."""
    x, y = shard(x), shard(y)
    with torch.no_grad(), frozen(model, x):
        parts = eval_batches(x, y, usual_batch(x))
        wrong = torch.cat([class_logits(model, images).argmax(1) != labels for images, labels in parts])
    (wrong,) = Shares(len(y)).gather(wrong)
    return 100 * float(wrong.double().mean())


def evaluate(
    model: nn.Module,
    x: Images,
    y: Tensor,
    rows: Tensor | None = None,
    progress: bool = True,
    std: Sequence[float] | None = None,
    error: float | None = None,
) -> dict:
    """What a run reports of its test images (uint8): the error over all, if it is not known yet, and the margin over
    all or over some `rows`."""
    images = as_input(x if rows is None else x[rows.to(x.device)])
    summary = shared_margins(model, images, progress=progress, std=std).summary()
    margin = {f"margin_{name}": value for name, value in summary.items()}
    error = error_rate(model, x, y) if error is None else error
    return {"error": error, "test_images": len(x), "margin": margin.pop("margin_mean"), **margin}
