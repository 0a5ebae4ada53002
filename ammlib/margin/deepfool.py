"""DeepFool (eq. 2-4): how far a sample lies from the decision boundary, and how that distance depends on the weights.

Two passes give the numbers of a naive differentiation through the attack at a fraction of its cost: `walk` runs the
attack without a graph and records every point it visits; `margin` evaluates all visited points of the samples of
interest in one batch, with a graph, and folds them into ‖Δ_x‖ as a function of the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import check_attack, check_images, check_values, class_logits, frozen
from ammlib.margin.gradients import View, gap_and_gradient, gap_gradients, look

# After the first step a rival is left out once its logit gap is this many times the smallest one: to be the nearest
# boundary its gradient would have to be as many times longer. Seen in 27,000 such steps on three nets: at most 1.
LATER_REACH = 2.0


@dataclass(frozen=True)
class AttackResult:
    """What the attack did to each of B samples."""

    delta: Tensor  # (B, ...) the perturbation Δ_x
    norm: Tensor  # (B,) its l2 norm
    success: Tensor  # (B,) bool: the prediction at x + Δ_x has changed (targeted: it is the label)
    steps: Tensor  # (B,) iterations taken
    prediction: Tensor  # (B,) class at x


class Step(NamedTuple):
    """One iteration of n samples: the points it starts from and the two classes whose boundary it steps to."""

    rows: Tensor  # (n,) which samples of the batch
    points: Tensor  # (n, ...) x + Δ^(i)
    reference: Tensor  # (n,) predicted class
    target: Tensor  # (n,) class beyond the nearest boundary


@dataclass
class Walk:
    """The trajectories of a batch of B samples; rows that were not attacked keep a zero delta and no success."""

    delta: Tensor  # (B, ...)
    norm: Tensor  # (B,) of delta
    success: Tensor  # (B,) bool
    steps: list[Step]


def deepfool(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    steps: int = 6,
    overshoot: float = 0.02,
    num_rivals: int = 10,
) -> AttackResult:
    """Attack a batch: away from the prediction or, given labels `y`, towards the label where the prediction is wrong.

    `model` maps (B, ...) to logits (B, C), or to one logit whose sign is the prediction (labels 0 and 1). The
    classes considered are the `num_rivals` highest logits of the clean sample, its prediction included.
    """
    check_attack(steps, overshoot, num_rivals)
    check_images(x)
    with frozen(model, x), torch.no_grad():
        clean = look(model, x)
        f = clean.f.detach()
        y = check_values(x, f, y)
        path = walk(model, clean, y, steps=steps, overshoot=overshoot, num_rivals=num_rivals)
        # Judged at exactly the tensor that the caller can form: a smaller batch may round otherwise.
        f_there = class_logits(model, x + path.delta)
        success = arrived(f_there, *destination(f, y))
    taken = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for step in path.steps:
        taken[step.rows] += 1
    return AttackResult(path.delta, path.norm, success, taken, f.argmax(1))


@torch.no_grad()
def walk(
    model: nn.Module,
    clean: View,
    y: Tensor | None = None,
    rows: Tensor | None = None,
    *,
    steps: int = 6,
    overshoot: float = 0.02,
    num_rivals: int = 10,
    limit: Tensor | None = None,
    drop: Callable[[Tensor], Tensor] | None = None,
) -> Walk:
    """Follow the attack from the clean samples, whose graph it uses up; a row leaves the batch once it has arrived.

    Screening uses the rest: it starts with some `rows` only, leaves out of the first step the rivals of a row whose
    logit gap exceeds its `limit` (B,), and after that step gives up the rows that `drop(norm)` (B,) marks.
    """
    x, f = clean.points.detach(), clean.f.detach()
    path = Walk(torch.zeros_like(x), x.new_zeros(len(x)), torch.zeros(len(x), dtype=torch.bool, device=x.device), [])
    goal, targeted = destination(f, y)
    rivals = f.scatter(1, f.argmax(1, keepdim=True), -torch.inf).topk(min(num_rivals, f.shape[1]) - 1).indices  # (B, K)
    rivals[:, 0] = torch.where(targeted, goal, rivals[:, 0])  # a targeted row has one rival, its label

    rows = torch.arange(len(x), device=x.device) if rows is None else rows
    points, delta, f = x[rows], path.delta[rows], f[rows]
    view, at = clean, rows  # where in the view each row is
    for i in range(steps):
        if len(rows) and (not view.f.requires_grad or 2 * len(at) <= len(view.f)):  # no graph, or mostly of others
            view, at = look(model, points), torch.arange(len(rows), device=x.device)
        gap = f.amax(1, keepdim=True) - f.gather(1, rivals[rows])  # (n, K), f_ref - f_k >= 0
        gap.clamp_(max=torch.finfo(gap.dtype).max)  # the difference of finite logits may overflow
        gap[:, 1:].masked_fill_(targeted[rows].unsqueeze(1), torch.inf)
        reference = f.argmax(1)
        most = LATER_REACH * gap.amin(1) if i else None if limit is None else limit[rows]
        distance, target, unit = nearest_boundary(model, view, at, reference, rivals[rows], gap, most)
        delta = delta + expand((1 + overshoot) * distance, x) * unit  # eq. 3 and 4
        norm = delta.flatten(1).norm(dim=1)
        moved = norm.isfinite()  # otherwise all gradients vanish: there is no boundary to step to
        rows, points, reference, target, delta, norm = select(moved, rows, points, reference, target, delta, norm)
        path.steps.append(Step(rows, points, reference, target))
        path.delta[rows], path.norm[rows] = delta, norm
        if i == 0 and drop is not None:
            rows, delta = select(~drop(path.norm)[rows], rows, delta)
        if not len(rows):
            break
        view = look(model, x[rows] + delta, graph=i + 1 < steps)
        f = view.f.detach()
        path.success[rows] = done = arrived(f, goal[rows], targeted[rows])
        at = (~done & f.isfinite().all(1)).nonzero().squeeze(1)
        rows, points, delta, f = rows[at], view.points.detach()[at], delta[at], f[at]
        if not len(rows):
            break
    return path


def nearest_boundary(
    model: nn.Module, view: View, at: Tensor, reference: Tensor, rivals: Tensor, gap: Tensor, limit: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance, class and unit normal of the nearest linearised boundary at the points `at` of a view (eq. 2)."""
    if not len(at):
        return gap.sum(1), reference, view.points[at]
    wanted = gap.isfinite()  # (n, K)
    if limit is not None:
        wanted &= gap <= limit.unsqueeze(1)
    row, k = wanted.nonzero(as_tuple=True)  # the pairs of a point and a rival
    turn = wanted.cumsum(1)[row, k] - 1  # counts the pairs of a point
    g = gap_gradients(model, view, at[row], reference[row], rivals[row, k], turn)
    size = g.flatten(1).norm(dim=1)
    distance = torch.full_like(gap, torch.inf)
    reachable = gap[row, k] / size / size < torch.finfo(size.dtype).max / 100  # else zero or vanishing: no boundary
    distance[row, k] = torch.where(reachable, gap[row, k] / size, torch.inf)
    distance, nearest = distance.min(1, keepdim=True)
    pair = (wanted.flatten().cumsum(0) - 1).view_as(wanted).gather(1, nearest).squeeze(1)
    return distance.squeeze(1), rivals.gather(1, nearest).squeeze(1), g[pair] / expand(size[pair], g)


def margin(model: nn.Module, path: Walk, rows: Tensor, overshoot: float = 0.02, high_order: bool = True) -> Tensor:
    """‖Δ_x‖ of the given samples of a walk as a differentiable function of the weights, shape (len(rows),).

    Gradients flow through the logits and, with `high_order`, through ∇f, taken at fixed points: for piecewise-linear
    networks that is the exact derivative.
    """
    if not len(rows):
        return path.norm[rows].requires_grad_()
    place = torch.full_like(path.success, -1, dtype=torch.long)
    place[rows] = torch.arange(len(rows), device=rows.device)
    steps = [Step(*select(place[step.rows] >= 0, *step)) for step in path.steps]
    visited = Step(*map(torch.cat, zip(*steps, strict=True)))
    gap, g = gap_and_gradient(model, visited.points, visited.reference, visited.target, graph=True)
    g = (g if high_order else g.detach()).flatten(1)  # (P, D)
    size = g.norm(dim=1, keepdim=True)
    unit = g / size
    lengths = [len(step.rows) for step in steps]
    delta = g.new_zeros(len(rows), g.shape[1])
    for step, gap_i, g_i, size_i, unit_i in zip(steps, *(t.split(lengths) for t in (gap, g, size, unit)), strict=True):
        at = place[step.rows]
        before = delta[at]
        # The logits also move with the earlier steps: zero in value, exact in derivative.
        gap_i = gap_i + (g_i.detach() * (before - before.detach())).sum(1)
        delta = delta.index_add(0, at, -(1 + overshoot) * gap_i.unsqueeze(1) / size_i * unit_i)  # eq. 3 and 4
    return delta.norm(dim=1)


def destination(f: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """The class to leave or, where targeted, to reach; and which rows are targeted (predicted other than `y`)."""
    prediction = f.argmax(1)
    targeted = torch.zeros_like(prediction, dtype=torch.bool) if y is None else prediction != y
    return (prediction if y is None else y), targeted  # where not targeted, y is the prediction


def arrived(f: Tensor, goal: Tensor, targeted: Tensor) -> Tensor:
    """Has the prediction left the class `goal`, or reached it where targeted?"""
    return ((f.argmax(1) == goal) == targeted) & f.isfinite().all(1)


def select(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows of each tensor where `mask` holds."""
    rows = mask.nonzero().squeeze(1)
    return tensors if len(rows) == len(mask) else tuple(t[rows] for t in tensors)


def expand(v: Tensor, like: Tensor) -> Tensor:
    """(n,) shaped to broadcast against (n, ...)."""
    return v.view(-1, *[1] * (like.ndim - 1))
