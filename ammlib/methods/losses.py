"""Classification losses of logits (B, C) and labels (B,), which may be none: also then they have a graph."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f, y, reduction="mean" if len(y) else "sum")


def hinge(f: Tensor, y: Tensor) -> Tensor:
    """Crammer and Singer's multi-class hinge: the mean of max(0, 1 + max_{j≠y} f_j - f_y)."""
    label = y.unsqueeze(1)
    rival = f.scatter(1, label, -float("inf")).amax(1)
    return (1 + rival - f.gather(1, label).squeeze(1)).clamp(min=0).sum() / max(1, len(y))


def squared_hinge(f: Tensor, y: Tensor) -> Tensor:
    """One class against the rest: the mean of Σ_k max(0, 1 - t_k f_k)², t = 1 for the label and -1 otherwise."""
    t = 2 * F.one_hot(y, f.shape[1]).to(f) - 1
    return (1 - t * f).clamp(min=0).square().sum() / max(1, len(y))


def soft_margin(f: Tensor, y: Tensor, m: float) -> Tensor:
    """Cross-entropy with f_y - m in place of f_y: the label has to win by m (Wang et al. 2018)."""
    return cross_entropy(f - m * F.one_hot(y, f.shape[1]).to(f), y)


def nothing(f: Tensor, y: Tensor) -> Tensor:
    return f[:0].sum()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # that a recipe can name
    "cross_entropy": cross_entropy,
    "hinge": hinge,
    "none": nothing,
}
