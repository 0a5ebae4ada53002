"""How the library looks at a classifier: its logits, its undisturbed state, and what it may be given."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from ammlib.device import random_state_kept
from ammlib.distributed import world

T = TypeVar("T")


def class_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Logits (B, C) of any classifier, single-logit ones included."""
    return as_classes(model(x))


def as_classes(f: Tensor) -> Tensor:
    """Logits as (B, C): a single logit f, whose sign is the prediction, becomes the two logits (0, f)."""
    f = f.unsqueeze(1) if f.ndim == 1 else f
    return torch.cat([torch.zeros_like(f), f], 1) if f.shape[1:] == (1,) else f


@contextmanager
def frozen(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Eval mode inside; afterwards training flags and random state are exactly as before."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with random_state_kept(x.device):
            yield
    finally:
        for module in training:
            module.training = True


def differs_in_eval_mode(model: nn.Module) -> bool:
    """Does the model, in its present mode, give other logits than in eval mode (batch norm, dropout)?

    Seen by its modules; one that asks for `self.training` in its own `forward` is not.
    """
    changing = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
    rates = (getattr(module, "dropout", 0.0) for module in model.modules() if module.training)  # of recurrent nets, ...
    return any(rate for rate in rates if isinstance(rate, float)) or any(
        module.training and isinstance(module, changing) for module in model.modules()
    )


def check_images(x: Tensor) -> None:
    """Reject an empty batch, integers, NaN or infinite values, and a mode without gradients."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError("the attack needs gradients, which torch.inference_mode() forbids; torch.no_grad() is fine")
    if not x.is_floating_point():
        raise TypeError(f"x must be a floating-point tensor, got {x.dtype}; scale uint8 images to [0, 1] first")
    if len(x) == 0 and world() == 1:  # of several processes, some may have no share of the last batch
        raise ValueError("x is an empty batch")
    if not x.isfinite().all():
        raise ValueError("x contains NaN or infinite values")


def check_logits(f: Tensor, y: Tensor | None, batch: int) -> None:
    """Reject logits and labels that would give meaningless margins: wrong shapes or types, values out of range."""
    if f.ndim != 2 or f.shape[0] != batch:
        raise ValueError(f"logits must have shape ({batch}, classes), got {tuple(f.shape)}")
    if not f.isfinite().all():
        raise ValueError("logits contains NaN or infinite values")
    if y is None:
        return
    if y.dtype != torch.long:
        raise TypeError(f"labels must be int64 class indices, got {y.dtype}")
    if y.shape != (batch,):
        raise ValueError(f"labels must have shape ({batch},), got {tuple(y.shape)}")
    if len(y) and (y.min() < 0 or y.max() >= f.shape[1]):
        raise ValueError(f"labels must lie in 0..{f.shape[1] - 1}, got {int(y.min())}..{int(y.max())}")


def check_attack(steps: int, overshoot: float, num_rivals: int) -> None:
    """Reject options with which the attack could not move."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if num_rivals < 2:
        raise ValueError(f"num_rivals counts the predicted class too: it must be at least 2, got {num_rivals}")
    if overshoot < 0:
        raise ValueError(f"overshoot must not be negative, got {overshoot}")


def check_positive(**values: float) -> None:
    """Each named value must be greater than zero."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def choose(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """The entry called `name`, or an error that lists the names there are."""
    if name not in choices:
        raise ValueError(f"unknown {kind} {name!r}; choose from {', '.join(choices)}")
    return choices[name]
