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


class Step(NamedTuple):
    """One iteration of n samples: the points it starts from and the two classes whose boundary it steps to."""

    rows: Tensor  # (n,) which samples of the batch
    moved: Tensor  # (n,) bool: the others stayed where they were
    points: Tensor  # (n, ...) x + Δ^(i)
    reference: Tensor  # (n,) predicted class
    target: Tensor  # (n,) class beyond the nearest boundary


@dataclass
class Walk:
    """The trajectories of a batch of B samples; those that were not followed keep a zero delta and no success."""

    x: Tensor  # (B, ...)
    course: "Course"
    followed: Tensor  # (B,) bool
    delta: Tensor  # (B, ...)
    success: Tensor  # (B,) bool
    steps: list[Step]

    @cached_property
    def norm(self) -> Tensor:
        """‖Δ_x‖ (B,), once the walk has ended."""
        return norm(self.delta)

    def taken(self) -> Tensor:
        """How many steps each sample took (B,)."""
        count = torch.zeros_like(self.success, dtype=torch.long)
        for step in self.steps:
            count[step.rows] += step.moved
        return count


class Group(NamedTuple):
    """The n samples of a batch that are under way."""

    rows: Tensor  # (n,) which samples
    moving: Tensor  # (n,) bool: the others have arrived, or cannot move
    x: Tensor  # (n, ...)
    delta: Tensor  # (n, ...) their perturbations so far
    course: "Course"

    def at(self, rows: Tensor | slice) -> "Group":
        """Some of them."""
        return Group(self.rows[rows], self.moving[rows], self.x[rows], self.delta[rows], self.course.at(rows))


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
