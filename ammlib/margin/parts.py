"""The small parts of a margin regulariser: which margins count (section 3.3.1), for how much (3.3.2), and a report."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ammlib.margin.classifier import check_positive

TOP = 0.2  # MIN: a margin counts only if it is among this share of the batch

# ---- of keys (G, B), of G groups, infinite where there is nothing to count, those that are kept (G, B) bool


def smallest_of_each_class(key: Tensor, y: Tensor) -> Tensor:
    """MIN: the smallest of its class, if it is among the smallest `TOP` of the batch."""
    order = key.argsort(stable=True)[:, : max(1, int(TOP * len(y)))]
    return torch.zeros_like(key, dtype=torch.bool).scatter_(1, order, first_of_class(y[order])) & (key < torch.inf)


def all_of_them(key: Tensor, y: Tensor) -> Tensor:
    """AVG."""
    return key < torch.inf


def first_of_class(y: Tensor) -> Tensor:
    """Is a label (..., n) the first of its kind?"""
    return (y.unsqueeze(-1) == y.unsqueeze(-2)).tril().sum(-1) == 1


AGGREGATION = {"min": smallest_of_each_class, "avg": all_of_them}


# ---- R of t = -cm or +dm, and the t at which it has a value


class Shrinkage(NamedTuple):
    """The term of a margin is λR(min(t, R⁻¹(clip/λ))): truncated, so that it never exceeds `clip`."""

    value: Callable[[Tensor], Tensor]  # R
    inverse: Callable[[float], float]  # R⁻¹; infinite if R is not to be truncated

    def term(self, t: Tensor, lam: float, clip: float) -> Tensor:
        return lam * self.value(t.clamp(max=self.inverse(clip / lam)))


def check_strength(shrinkage: Shrinkage, lam: float, c: float, d: float, clip: float) -> None:
    """Reject a term that could not count: from λR(0) = clip on, that of a misclassified sample is a constant."""
    check_positive(lam=lam, c=c, d=d, clip=clip)
    if shrinkage.inverse(clip / lam) <= 0:
        raise ValueError(f"lam must be less than clip, {clip:g}, or truncation leaves no gradient; got {lam:g}")


def linear(t: Tensor) -> Tensor:
    return t


def hyperbola(t: Tensor) -> Tensor:
    return 1 / (1 - t)


def inverse_hyperbola(value: float) -> float:
    return 1 - 1 / value


def unbounded(value: float) -> float:
    return math.inf


SHRINKAGE = {
    "lin": Shrinkage(linear, unbounded),
    "exp": Shrinkage(torch.exp, math.log),
    "inv": Shrinkage(hyperbola, inverse_hyperbola),
}


@dataclass(frozen=True)
class Report:
    """What one call of the regulariser did, in numbers of samples."""

    correct: int
    misclassified: int
    attacked: int  # trajectories followed (all of them, unless screened)
    fooled: int  # of the attacked, arrived on the other side of the boundary
    kept: int  # of the attacked, counted
    margin: float  # mean over the kept and correctly classified; NaN if there are none

    @classmethod
    def of(cls, correct: Tensor, attacked: Tensor, fooled: Tensor, kept: Tensor, m: Tensor) -> "Report":
        """From columns (B,) of the whole batch."""
        right, wrong, followed, arrived, counted = (
            int(column.sum()) for column in (correct, ~correct, attacked, fooled, kept)
        )
        return cls(right, wrong, followed, arrived, counted, float(m[kept & correct].mean()))
