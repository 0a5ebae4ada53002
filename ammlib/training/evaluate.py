"""Errors and margins of a trained classifier over a whole test set, of which several processes share the work."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.data.folders import Images, in_parts
from ammlib.margin.classifier import class_logits, frozen
from ammlib.margin.margins import Margins, margins, usual_batch
from ammlib.margin.processes import Shares, is_main, shard


def shared_margins(
    model: nn.Module, x: Images, y: Tensor | None = None, *, progress: bool = True, **options: Any
) -> Margins:
    """Margins of images, perhaps with labels, that all processes have; each computes its share."""
    size, own_x = usual_batch(x), shard(x)
    batches = in_parts(own_x, size) if y is None else zip(in_parts(own_x, size), shard(y).split(size), strict=True)
    total = math.ceil(len(own_x) / size)
    shown = tqdm(batches, "margins", total, unit="batch", disable=not (progress and is_main()), leave=False)
    own = margins(model, shown, progress=False, **options)
    shares = Shares(len(own.norm), x.device)
    norm, success, steps = shares.gather(own.norm, own.success, own.steps)
    return Margins(norm, success, steps, None if own.correct is None else shares.gather(own.correct)[0])


def error_rate(model: nn.Module, x: Images, y: Tensor) -> float:
    """Test error in % on uint8 images; of several processes each looks at its share."""
    x, y = shard(x), shard(y)
    size = usual_batch(x)
    with torch.no_grad(), frozen(model, y):
        parts = zip(in_parts(x, size), y.split(size), strict=True)
        wrong = torch.cat([class_logits(model, images).argmax(1) != labels for images, labels in parts])
    (wrong,) = Shares(len(y), y.device).gather(wrong)
    return 100 * float(wrong.double().mean())


def evaluate(
    model: nn.Module,
    x: Images,
    y: Tensor,
    rows: Tensor | None = None,
    progress: bool = True,
    std: Sequence[float] | None = None,
    error: float | None = None,
) -> dict[str, float]:
    """What a run reports of its test images (uint8): the error over all, if it is not known yet, and the margin over
    all or over some `rows`."""
    images = x if rows is None else x[rows.to(x.device)]
    summary = shared_margins(model, images, progress=progress, std=std).summary()
    margin = {f"margin_{name}": value for name, value in summary.items()}
    error = error_rate(model, x, y) if error is None else error
    return {"error": error, "test_images": len(x), "margin": margin.pop("margin_mean"), **margin}
