"""What an attack is told and what it leaves behind: where each sample is to go, the steps it took, where it ended."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


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
    longest: Tensor  # (n,) the length of the longest gradient looked at

    @classmethod
    def unknown(cls, x: Tensor, course: "Course") -> "Boundary":
        """Before any look from the points x."""
        nowhere = x.new_full((len(x),), torch.inf)
        return cls(nowhere, course.rivals[:, 0].clone(), -nowhere, torch.zeros_like(x), torch.zeros_like(nowhere))


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
    norm: Tensor  # (B,) of delta
    success: Tensor  # (B,) bool
    steps: list[Step]

    @classmethod
    def start(cls, x: Tensor, course: "Course", rows: Tensor | None) -> "Walk":
        """Before the first step of some rows, or of all."""
        nobody = torch.zeros_like(course.targeted)
        followed = ~nobody if rows is None else nobody.index_fill(0, rows, True)
        return cls(x, course, followed, torch.zeros_like(x), x.new_zeros(len(x)), nobody, [])

    def taken(self) -> Tensor:
        """How many steps each sample took (B,)."""
        count = torch.zeros_like(self.success, dtype=torch.long)
        for step in self.steps:
            count[step.rows] += step.moved
        return count


@dataclass(frozen=True)
class Course:
    """Where the attack on each of B samples is to go."""

    goal: Tensor  # (B,) the class to leave or, where targeted, to reach
    targeted: Tensor  # (B,) bool: the prediction is not the label
    rivals: Tensor  # (B, K) classes to step towards, the highest logits first; a targeted row has one, its label

    @classmethod
    def of(cls, f: Tensor, y: Tensor | None, num_rivals: int) -> "Course":
        """Away from the prediction or, where it is not `y`, towards `y`."""
        prediction = f.argmax(1)
        targeted = torch.zeros_like(prediction, dtype=torch.bool) if y is None else prediction != y
        goal = prediction if y is None else y  # where not targeted, y is the prediction
        others = f.scatter(1, prediction.unsqueeze(1), -torch.inf)
        rivals = others.topk(min(num_rivals, f.shape[1]) - 1).indices
        rivals[:, 0] = torch.where(targeted, goal, rivals[:, 0])
        return cls(goal, targeted, rivals)

    def at(self, rows: Tensor | slice) -> "Course":
        """The course of some of the samples."""
        return Course(self.goal[rows], self.targeted[rows], self.rivals[rows])

    def gaps(self, f: Tensor) -> Tensor:
        """f_k - f_reference <= 0 (B, K) between the predicted class and its rivals; of no rival it is infinite."""
        gap = f.gather(1, self.rivals) - f.amax(1, keepdim=True)
        gap.clamp_(min=-torch.finfo(gap.dtype).max)  # the difference of finite logits may overflow
        gap[:, 1:].masked_fill_(self.targeted.unsqueeze(1), -torch.inf)
        return gap

    def arrived(self, f: Tensor) -> Tensor:
        """Has the prediction left its class, or reached the label where targeted?"""
        top, prediction = f.max(1)  # NaN if one of the logits is
        return ((prediction == self.goal) == self.targeted) & (top < torch.inf)


def expand(v: Tensor, like: Tensor) -> Tensor:
    """(n,) shaped to broadcast against (n, ...)."""
    return v.view(-1, *[1] * (like.ndim - 1))
