"""What an attack is told and what it leaves behind: where each sample is to go, the steps it took, where it ended."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ammlib.margin.gradients import View

FARTHEST = 1e17  # of a boundary: the square of a norm has to be a number of single precision


@dataclass(frozen=True)
class AttackResult:
    """What the attack did to each of B samples."""

    delta: Tensor  # (B, ...) the perturbation Δ_x
    norm: Tensor  # (B,) its l2 norm
    success: Tensor  # (B,) bool: the prediction at x + Δ_x has changed (targeted: it is the label)
    steps: Tensor  # (B,) iterations taken
    prediction: Tensor  # (B,) class at x


class Boundary(NamedTuple):
    """The nearest linearised boundary of n points, among those looked at."""

    distance: Tensor  # (n,) infinite where there is none
    target: Tensor  # (n,) the class beyond
    gap: Tensor  # (n,) to it
    g: Tensor  # (n, ...) the gap's gradient
    size: Tensor  # (n, T) the lengths of all gradients looked at

    def at(self, rows: Tensor | slice) -> "Boundary":
        """Of some of the points."""
        return Boundary(*(part[rows] for part in self))

    def spread(self) -> Tensor:
        """How many times as long the longest gradient looked at is as the shortest (n,)."""
        seen = (self.size > 0) & (self.size < torch.inf)  # others have not been looked at
        shortest = torch.where(seen, self.size, torch.inf).amin(1)
        return torch.where(seen, self.size, 0).amax(1) / shortest


class Step(NamedTuple):
    """One iteration of a batch: from where samples moved, and between which two classes the boundary is."""

    moved: Tensor  # (B,) bool: the others stayed where they were, what is said of them means nothing
    points: Tensor  # (B, ...) x + Δ^(i)
    reference: Tensor  # (B,) predicted class
    target: Tensor  # (B,) class beyond the nearest boundary


@dataclass
class Walk:
    """The trajectories of a batch of B samples; those that are not followed keep a zero delta and no success."""

    x: Tensor  # (B, ...)
    course: "Course"
    followed: Tensor  # (B,) bool
    delta: Tensor  # (B, ...) so far
    moving: Tensor  # (B,) bool: under way, neither arrived nor stuck
    success: Tensor  # (B,) bool: arrived
    steps: list[Step]

    @classmethod
    def begin(cls, x: Tensor, course: "Course", followed: Tensor | None = None) -> "Walk":
        """At the samples themselves; all are followed unless told otherwise."""
        followed = torch.ones_like(course.targeted) if followed is None else followed
        return cls(x, course, followed, torch.zeros_like(x), followed.clone(), torch.zeros_like(followed), [])

    def here(self, rows: Tensor | slice) -> Tensor:
        """Where some of the samples have come to."""
        return self.x[rows] + self.delta[rows]

    def note(self, rows: Tensor | slice, moved: Tensor, view: View, target: Tensor) -> None:
        """Remember an iteration of some rows; the others do not move any more."""
        columns = (moved, view.points.detach(), view.prediction, target)
        self.steps.append(Step(*(among_all(column, rows, len(self.x)) for column in columns)))
        self.moving = self.steps[-1].moved

    def arrive(self, rows: Tensor | slice, arrived: Tensor) -> None:
        """Who has arrived does not move any more."""
        self.success[rows] = arrived
        self.moving = self.moving & ~self.success

    @cached_property
    def norm(self) -> Tensor:
        """‖Δ_x‖ (B,), once the walk has ended."""
        return norm(self.delta)

    def taken(self) -> Tensor:
        """How many steps each sample took (B,)."""
        moved = [step.moved for step in self.steps]
        return torch.stack(moved).sum(0) if moved else torch.zeros_like(self.success, dtype=torch.long)


def among_all(values: Tensor, rows: Tensor | slice, size: int) -> Tensor:
    """Values of some rows as values of all, zero elsewhere."""
    if isinstance(rows, slice):  # which are all
        return values
    everywhere = values.new_zeros(size, *values.shape[1:])
    everywhere[rows] = values
    return everywhere


@dataclass(frozen=True)
class Course:
    """Where the attack on each of B samples is to go."""

    goal: Tensor  # (B,) the class to leave or, where targeted, to reach
    targeted: Tensor  # (B,) bool: the prediction is not the label
    rivals: Tensor  # (B, K) classes to step towards, the highest logits first; a targeted row has one, its label
    classes: int

    @classmethod
    def of(cls, view: View, y: Tensor | None, num_rivals: int) -> "Course":
        """Away from the prediction or, where it is not `y`, towards `y`."""
        f, prediction = view.f.detach(), view.prediction
        targeted = torch.zeros_like(prediction, dtype=torch.bool) if y is None else prediction != y
        goal = prediction if y is None else y  # where not targeted, y is the prediction
        others = f.scatter(1, prediction.unsqueeze(1), -torch.inf)
        rivals = others.topk(min(num_rivals, f.shape[1]) - 1).indices
        rivals[:, 0] = torch.where(targeted, goal, rivals[:, 0])
        return cls(goal, targeted, rivals, f.shape[1])

    def at(self, rows: Tensor | slice) -> "Course":
        """The course of some of the samples."""
        return Course(self.goal[rows], self.targeted[rows], self.rivals[rows], self.classes)

    def gaps(self, view: View) -> Tensor:
        """f_k - f_reference <= 0 (B, K) between the predicted class and its rivals; of no rival it is infinite."""
        self.check(view)
        gap = view.f.detach().gather(1, self.rivals) - view.top.unsqueeze(1)
        gap.clamp_(min=-torch.finfo(gap.dtype).max)  # the difference of finite logits may overflow
        gap[:, 1:].masked_fill_(self.targeted.unsqueeze(1), -torch.inf)
        return gap

    def check(self, view: View) -> None:
        """Reject the logits of another model, by which the course was set."""
        if view.f.shape[1] != self.classes:
            raise ValueError(f"logits are of {self.classes} classes, the model gives {view.f.shape[1]}")

    def arrived(self, view: View) -> Tensor:
        """Has the prediction left its class, or reached the label where targeted?"""
        return ((view.prediction == self.goal) == self.targeted) & (view.top < torch.inf)


# ---- vectors (n, ...)


def expand(v: Tensor, like: Tensor) -> Tensor:
    """(n,) shaped to broadcast against (n, ...)."""
    return v.view(-1, *[1] * (like.ndim - 1))


def norm(v: Tensor) -> Tensor:
    """‖v‖ (n,)"""
    length: Tensor = v.flatten(1).norm(dim=1)
    return length


def dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ (n,)"""
    return (a * b).flatten(1).sum(1)
