"""Errors and margins of a trained classifier over a whole test set, of which several processes share the work."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.data.batches import eval_batches, model_input
from ammlib.data.folders import ImageFiles
from ammlib.margin.classifier import class_logits, frozen
from ammlib.margin.margins import Margins, margins, usual_batch
from ammlib.margin.processes import Shares, is_main, shard

Images = Tensor | ImageFiles


def shared_margins(
    model: nn.Module, x: Images, y: Tensor | None = None, *, progress: bool = True, **options: Any
) -> Margins:
    """Margins of images, perhaps with labels, that all processes have; each computes its share."""
    size, columns = usual_batch(x), [shard(column) for column in (x, y) if column is not None]
    parts = zip(*(column.split(size) for column in columns), strict=True)
    batches = ((model_input(images), *labels) for images, *labels in parts)
    total = math.ceil(len(columns[0]) / size)
    shown = tqdm(batches, "margins", total, unit="batch", disable=not (progress and is_main()), leave=False)
    own = margins(model, shown, progress=False, **options)
    labelled = () if own.correct is None else (own.correct,)
    found = Shares(len(own.norm)).gather(own.norm, own.success, own.steps, *labelled)
    return Margins(*found[:3], correct=found[3] if labelled else None)


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
    images = x if rows is None else x[rows.to(x.device)]
    summary = shared_margins(model, images, progress=progress, std=std).summary()
    margin = {f"margin_{name}": value for name, value in summary.items()}
    error = error_rate(model, x, y) if error is None else error
    return {"error": error, "test_images": len(x), "margin": margin.pop("margin_mean"), **margin}
