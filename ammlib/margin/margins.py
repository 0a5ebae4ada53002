"""How far the samples of a whole data set lie from the decision boundary of a classifier."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from ammlib.margin.classifier import (
    are_probabilities,
    as_labels,
    as_tensor,
    check_range,
    choose,
    class_logits,
    frozen,
    parameters_like,
    why_not_fooled,
)
from ammlib.margin.deepfool import deepfool
from ammlib.margin.tight import tight
from ammlib.margin.trajectories import norm

if TYPE_CHECKING:
    import pandas

ATTACKS = {"deepfool": deepfool, "tight": tight}
KEYS = ("pixel_values", "labels")  # of a batch that is a dict, as Hugging Face's are


@dataclass(frozen=True, eq=False)  # of tensors there is no one answer
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

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns as plain lists, such as JSON takes."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column.tolist() for name, column in columns.items() if column is not None}

    def frame(self) -> "pandas.DataFrame":
        """A pandas table with a row for each sample."""
        import pandas

        return pandas.DataFrame(self.to_dict())

    def __repr__(self) -> str:
        return f"Margins({', '.join(f'{key} {value:.4g}' for key, value in self.summary().items())})"

    def _repr_html_(self) -> str:
        head, row = zip(*((f"<th>{k}</th>", f"<td>{v:.4g}</td>") for k, v in self.summary().items()), strict=True)
        return f"<table><caption>Margins</caption><tr>{''.join(head)}</tr><tr>{''.join(row)}</tr></table>"


def margins(
    model: nn.Module,
    data: Any,
    labels: Any = None,
    *,
    method: str = "deepfool",
    batch_size: int | None = None,
    progress: bool = True,
    std: Sequence[float] | None = None,
    keys: tuple[str, str] = KEYS,
    **options: Any,
) -> Margins:
    """Margins of samples in any usual form, computed where the model lives.

    data: images, with or without `labels` beside them; a pair of the two; a Dataset; a loader or any other iterable of
    batches, each of them images, or (images, labels, ...), or a dict with the `keys` of the two. Images are tensors or
    numpy arrays. Labels change no margin: they tell which samples are classified correctly.
    method: "deepfool", the paper's, or "tight", which finds nearer points in four times the time; `options` are those
    of the attack, such as `steps`. With `std`, one number a channel, norms are those of the perturbations divided by
    it, as ImageNet's are reported.
    """
    attack = choose("method", method, ATTACKS)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if "y" in options:  # or the attack would take it, and go towards these classes
        raise TypeError("y is no option here; labels stand beside the images: margins(model, x, labels)")
    if labels is not None:
        if not is_array(data):
            raise TypeError(f"labels stand beside images; {type(data).__name__} is taken to hold its own")
        data = (data, labels)
    like, classes = parameters_like(model), 0
    parts: list[tuple[Tensor, ...]] = []
    found = batches(data, batch_size)
    total = length_hint(found) or None  # of a stream it is unknown
    for batch in tqdm(found, "margins", total, unit="batch", disable=not progress, leave=False):
        x, y = (as_tensor(part, like) for part in images_and_labels(batch, keys))
        result = attack(model, x, **options)
        size = result.norm if std is None else in_units_of(std, result.delta)
        columns = [size, result.success, result.steps]
        if y is not None:
            classes = classes or look_once(model, x).shape[1]
            y = as_labels(y, len(x), classes)
            check_range([int(bound) for bound in y.aminmax()] if len(y) else [], classes)
            columns.append(result.prediction == y)
        parts.append(tuple(column.cpu() for column in columns))
    if not parts:
        raise ValueError("there are no samples")
    if len({len(part) for part in parts}) > 1:
        raise ValueError("only some of the batches have labels")
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    warn_if_few(columns[1], model, x)
    return Margins(columns[0], columns[1], columns[2], columns[3] if len(columns) == 4 else None)


def warn_if_few(success: Tensor, model: nn.Module, x: Tensor) -> None:
    """Say why no sample, or less than half where the net gives probabilities, has changed its class."""
    share = float(success.float().mean()) if len(success) else 1.0
    if share >= 0.5:
        return
    f = look_once(model, x)
    if not share:
        warnings.warn(f"no sample changed its class, so no margin is known; {why_not_fooled(f)}", stacklevel=3)
    elif are_probabilities(f):
        warnings.warn(f"only {share:.0%} of the samples changed their class; {why_not_fooled(f)}", stacklevel=3)


@torch.no_grad()
def look_once(model: nn.Module, x: Tensor) -> Tensor:
    """The logits (B, C) of a batch."""
    with frozen(model, x) as net:
        return class_logits(net, x)


def batches(data: Any, batch_size: int | None) -> Iterable[Any]:
    """The batches of any of the accepted forms of data."""
    if is_array(data):
        return split(data, batch_size or usual_batch(data))
    if is_pair(data):
        x, y = data
        if len(x) != len(y):
            raise ValueError(f"as many labels as images are needed, got {[len(x), len(y)]}")
        size = batch_size or usual_batch(x)
        return list(zip(split(x, size), split(y, size), strict=True))
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size or 100)
    if not isinstance(data, Iterable) or isinstance(data, Mapping | str):
        raise TypeError(f"data must be images, (images, labels), a Dataset or batches, got {type(data).__name__}")
    return data


def is_array(data: Any) -> bool:
    """A tensor or a numpy array?"""
    return hasattr(data, "__array__") and hasattr(data, "ndim")


def is_pair(data: Any) -> bool:
    """Images and labels, and not a list of two batches? Labels have fewer dimensions, or a second of size one."""
    if not (isinstance(data, Sequence) and len(data) == 2 and is_array(data[0])):
        return False
    if not is_array(data[1]):
        return isinstance(data[1], Sequence) and all(isinstance(label, int) for label in data[1])
    x, y = (tuple(array.shape[1:]) for array in data)
    return len(y) < len(x) or y == (1,) != x


def split(values: Any, size: int) -> list[Any]:
    """Parts of a tensor or an array, as they are: numpy's are converted one by one. Of nothing, one empty part."""
    return [values[start : start + size] for start in range(0, max(1, len(values)), size)]


def images_and_labels(batch: Any, keys: tuple[str, str]) -> Iterator[Any]:
    """The two parts of a batch; None where there are no labels."""
    if isinstance(batch, Mapping):
        for key in keys if keys != KEYS else keys[:1]:  # labels may be missing, unless they were asked for
            if key not in batch:
                raise ValueError(f"no {key!r} in the batch, which has {', '.join(map(str, batch))}; give keys=(x, y)")
        return iter((batch[keys[0]], batch.get(keys[1])))
    if not is_array(batch) and not isinstance(batch, Sequence):
        raise TypeError(f"a batch is images, (images, labels) or a dict, got {type(batch).__name__}")
    return iter((batch, None) if is_array(batch) else (*batch, None)[:2])


def usual_batch(x: Any) -> int:
    """As many images as fit into a few GB of memory with the gradients of a net: 500 small ones, 33 of 224 x 224."""
    pixels: int = math.prod(x.shape[1:])
    return max(1, min(500, 5_000_000 // max(1, pixels)))


def in_units_of(std: Sequence[float], delta: Tensor) -> Tensor:
    """Norms (B,) of perturbations (B, C, ...) whose channels are divided by `std`."""
    scale = torch.as_tensor(std, dtype=delta.dtype, device=delta.device)
    if scale.numel() not in (1, delta.shape[1]):
        raise ValueError(f"std has {scale.numel()} numbers, the data have {delta.shape[1]} channels")
    return norm(delta.transpose(1, -1) / scale)
