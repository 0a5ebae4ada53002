"""Which trajectories MIN has to follow: those of the samples that may be among the smallest margins of the batch.

The first step of the attack tells a margin nearly exactly, but wants a gradient for each (sample, rival) pair. The
logit gap costs nothing, but tells the margin |gap| / ‖∇gap‖ only as far as gradients are of the same length. So a few
pairs are looked at first, and show how near the smallest are, how long gradients get, and by how much those of one
sample differ; then those that a gradient as long as that would bring near enough to matter; and again, as they may
show a longer one. Where gradients differ much in length, this goes up to all pairs. A misclassified sample has one
rival, its label, and any may end with the largest margin: all of these are followed.
"""

import torch
from torch import Tensor, nn

from ammlib.margin.deepfool import nearest
from ammlib.margin.gradients import Strategy, View, look
from ammlib.margin.parts import TOP, first_of_class
from ammlib.margin.processes import Shares, anywhere
from ammlib.margin.trajectories import Boundary, Course

LEAST = 16  # of small batches as many samples are followed at least: a step may change the order of a few
REACH = 1.2  # pairs are looked at up to this many times the distance, for gradients longer than those seen so far
NEARLY = 1.1  # samples whose first step is up to this many times the distance go on: later steps change their order


def everything(
    model: nn.Module, clean: View, course: Course, y: Tensor, shares: Shares, how: Strategy
) -> tuple[None, None]:
    """All samples are followed, from where they are."""
    return None, None


@torch.no_grad()
def promising(
    model: nn.Module, clean: View, course: Course, y: Tensor, shares: Shares, how: Strategy
) -> tuple[Tensor, Boundary | None]:
    """Which samples to follow (B,) bool, and the nearest boundaries (B,)."""
    gap, rank = course.gaps(clean), max(LEAST, int(TOP * shares.total))
    if how.at_once:
        near = nearest(model, clean, course.rivals, gap, how) or unknown(clean.points, course)
    else:
        near = few_first(model, clean.points.detach(), course, gap, y, shares, rank, how)
    (distances,) = shares.gather(near.distance.masked_fill(course.targeted, torch.inf))  # All processes meet here.
    return course.targeted | (near.distance <= NEARLY * limit_of(distances, rank)), near


def few_first(
    model: nn.Module, x: Tensor, course: Course, gap: Tensor, y: Tensor, shares: Shares, rank: int, how: Strategy
) -> Boundary:
    """The nearest boundaries (B,) of all that matter, in rounds, in each of which all processes meet, here marked →."""
    near, correct, exists = unknown(x, course), ~course.targeted, gap > -torch.inf
    seen, wanted = torch.zeros_like(exists), torch.zeros_like(exists)
    sizes, labels, right = shares.gather(-gap[:, 0], y, correct)  # →
    wanted[:, :2] = shares.own(likely(sizes, labels, right, rank)).unsqueeze(1)  # two: by how much do they differ?
    wanted[:, 0] |= ~correct
    wanted &= exists
    while anywhere(wanted.any()):  # →
        look_at(model, near, x, course, gap, wanted, how)
        seen |= wanted
        shortest, longest = near.size.unbind(1)
        columns = longest * correct, longest / shortest * correct, near.distance.masked_fill(~correct, torch.inf)
        lengths, ratios, distances = shares.gather(*columns)  # →
        limit = limit_of(distances, rank)
        matters = shares.own(what_matters(distances, labels, limit))
        length = (ratios.max() * longest).clamp(max=lengths.max())  # of a gradient that is not seen yet
        length = torch.where(longest > 0, length, lengths.max())
        too_far = (-gap > (REACH * length * matters).unsqueeze(1)) & (limit < torch.inf)
        wanted = exists & ~(seen | too_far) & correct.unsqueeze(1)
        wanted[:, 1:] &= seen[:, :1]  # further rivals once the first has shown how long the sample's gradients are
    return near


def unknown(x: Tensor, course: Course) -> Boundary:
    """The nearest boundaries before any look from the points x; of lengths the shortest and the longest are kept."""
    nowhere = x.new_full((len(x),), torch.inf)
    lengths = torch.stack([nowhere, torch.zeros_like(nowhere)], 1)
    return Boundary(nowhere, course.rivals[:, 0].clone(), -nowhere, torch.zeros_like(x), lengths)


def look_at(
    model: nn.Module, near: Boundary, x: Tensor, course: Course, gap: Tensor, wanted: Tensor, how: Strategy
) -> None:
    """Correct the nearest boundaries known (B,) by a look at the `wanted` (B, K) rivals."""
    rows = wanted.any(1).nonzero().squeeze(1)
    gap = gap[rows].masked_fill(~wanted[rows], -torch.inf)
    if not len(rows):
        return
    view = look(model, x[rows])
    course.check(view)
    found = nearest(model, view, course.rivals[rows], gap, how)
    if found is None:
        return
    shortest, longest = near.size[rows].unbind(1)
    shortest = torch.minimum(shortest, found.size.masked_fill(found.size == 0, torch.inf).amin(1))  # 0: not looked at
    near.size[rows] = torch.stack([shortest, torch.maximum(longest, found.size.amax(1))], 1)
    closer = found.distance < near.distance[rows]
    for known, new in zip(near[:4], found[:4], strict=True):
        known[rows[closer]] = new[closer]


def what_matters(distances: Tensor, labels: Tensor, limit: Tensor) -> Tensor:
    """How near a boundary of each sample has to be to change what is kept: of each class the smallest, below the limit.

    A sample that is nearer than the farthest of these would have to become the smallest of its class; another one, to
    come nearer than that farthest, so that ranks change, or to be the first of its class below the limit.
    """
    smallest = torch.where(labels.unsqueeze(1) == labels, distances, torch.inf).amin(1)  # of its class
    kept = smallest <= limit
    far = torch.where(kept, torch.where(kept, smallest, 0).amax(), limit)
    return torch.where(distances > far, far, smallest)


def limit_of(distances: Tensor, rank: int) -> Tensor:
    """The distance that `rank` of the samples stay below; infinite if there are not so many."""
    return distances.kthvalue(rank).values if len(distances) >= rank else distances.new_tensor(torch.inf)


def likely(size: Tensor, y: Tensor, correct: Tensor, rank: int) -> Tensor:
    """Where to look first (B,) bool: at the smallest gaps, and at the smallest of each class."""
    order = torch.where(correct, size, torch.inf).argsort(stable=True)
    first = first_of_class(y[order])
    first[:rank] = True
    return torch.zeros_like(correct).scatter_(0, order, first) & correct
