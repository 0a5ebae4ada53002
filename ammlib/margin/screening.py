"""Which trajectories MIN has to follow: those of the samples that may be among the smallest margins of the batch.

The first step of the attack tells a margin nearly exactly, but wants a gradient for each (sample, rival) pair. The
logit gap costs nothing, but tells the margin |gap| / ‖∇gap‖ only as far as gradients are of the same length. So a few
pairs are looked at first, and show how near the smallest are and how long gradients get; then those that a gradient as
long as these would bring near enough to matter; and again, as they may show a longer one. Where gradients differ much
in length, this goes up to all pairs. A misclassified sample has one rival, its label, and any may end with the largest
margin: all of these are followed.
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
ORDINARY = 8.0  # the longest gradient of a batch is so many times the shortest at most; seen on trained nets: 2 to 5
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
    limit = limit_of(near, course, shares, rank)  # All processes meet here.
    return course.targeted | (near.distance <= NEARLY * limit), near


def few_first(
    model: nn.Module, x: Tensor, course: Course, gap: Tensor, y: Tensor, shares: Shares, rank: int, how: Strategy
) -> Boundary:
    """The nearest boundaries (B,) of all that matter, in rounds, in each of which all processes meet."""
    near, correct = unknown(x, course), ~course.targeted
    seen, wanted = torch.zeros_like(gap, dtype=torch.bool), torch.zeros_like(gap, dtype=torch.bool)
    sizes, labels, right = shares.gather(-gap[:, 0], y, correct)
    wanted[:, 0] = ~correct | shares.own(likely(sizes, labels, right, rank))
    while anywhere(wanted.any()):
        look_at(model, near, x, course, gap, wanted, how)
        seen |= wanted
        longest = near.size.squeeze(1)
        reach = bridged(longest, *shares.gather(longest * correct))
        limit = limit_of(near, course, shares, rank)
        bound = near.distance.clamp(max=limit)  # what is farther changes nothing
        too_far = (-gap > (REACH * reach * bound).unsqueeze(1)) & (limit < torch.inf)
        wanted = ~(seen | too_far) & (gap > -torch.inf) & correct.unsqueeze(1)
        wanted[:, 1:] &= seen[:, :1]  # further rivals once the first has shown how long the sample's gradients are
    return near


def unknown(x: Tensor, course: Course) -> Boundary:
    """The nearest boundaries before any look from the points x."""
    nowhere = x.new_full((len(x),), torch.inf)
    return Boundary(nowhere, course.rivals[:, 0].clone(), -nowhere, torch.zeros_like(x), x.new_zeros(len(x), 1))


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
    near.size[rows] = torch.maximum(near.size[rows], found.size.amax(1, keepdim=True))
    closer = found.distance < near.distance[rows]
    for known, new in zip(near[:4], found[:4], strict=True):
        known[rows[closer]] = new[closer]


def bridged(longest: Tensor, everywhere: Tensor) -> Tensor:
    """The gap (B,) that a gradient of each sample may bridge at distance 1: how long it may be.

    As long as the longest seen in the batch. But the gradients of one sample, towards other rivals, differ less than
    those of different samples: from what was seen of it by the square root of their spread, if that is ordinary.
    """
    most, least = everywhere.max(), torch.where(everywhere > 0, everywhere, torch.inf).min()
    spread = most / least
    own = torch.where(spread < ORDINARY, spread.sqrt() * longest, most).clamp(max=most)
    return torch.where(longest > 0, own, most)


def limit_of(near: Boundary, course: Course, shares: Shares, rank: int) -> Tensor:
    """The distance that `rank` of the correct samples stay below; infinite if there are not so many."""
    (distance,) = shares.gather(near.distance.masked_fill(course.targeted, torch.inf))
    return distance.kthvalue(rank).values if len(distance) >= rank else distance.new_tensor(torch.inf)


def likely(size: Tensor, y: Tensor, correct: Tensor, rank: int) -> Tensor:
    """Where to look first (B,) bool: at the smallest gaps, and at the smallest of each class."""
    order = torch.where(correct, size, torch.inf).argsort(stable=True)
    first = first_of_class(y[order])
    first[:rank] = True
    return torch.zeros_like(correct).scatter_(0, order, first) & correct
