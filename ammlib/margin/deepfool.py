"""DeepFool (section 3.1): how far a sample lies from the decision boundary, and how that depends on the weights.

Two passes give the numbers of a naive differentiation through the attack at a fraction of its cost.

`walk` runs the attack without a graph and records every point x + Δ^(i) that it visits. Nothing that it chooses, which
samples matter, which class is the nearest, when to stop, has a derivative: so a graph is needed only for the samples
that are kept in the end, and only at the points that they visited.

`margin` looks at all these points in one batch, with a graph, and has every step r^(i) as a function of the weights. A
step depends on the earlier ones too, since they move its point: if that moves by dΔ, the linearised f there changes by
⟨∇f, dΔ⟩ and the step, with the unit normal n = ∇f/‖∇f‖, by -(1 + η) n ⟨n, dΔ⟩. So, going back from v = Δ_x/‖Δ_x‖, the
derivative of the norm: a change dr of the last step changes the norm by ⟨v, dr⟩; a change of the steps before it, with
what it makes of the last one, by ⟨v - (1 + η) n ⟨n, v⟩, dr⟩; and so on. These weights v are constants. In value and in
derivative, ‖Δ_x‖ is its known value plus the sum of ⟨v, r^(i)⟩ less the value of that sum.
"""

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import check_attack, check_images, check_values, frozen
from ammlib.margin.gradients import Strategy, View, gap_and_gradient, look, strategy_for
from ammlib.margin.trajectories import FARTHEST, AttackResult, Boundary, Course, Walk, dot, expand, norm

# After the first step a rival is left out once its logit gap is this many times the smallest one, and as many times
# again as the first step saw one gradient of the sample longer than another: to be the nearest boundary its gradient
# would have to be longer still. Seen in 27,000 such steps on three nets: the smallest gap was always the nearest.
LATER_REACH = 2.0


def deepfool(
    model: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    steps: int = 6,
    overshoot: float = 0.02,
    num_rivals: int = 10,
    strategy: str = "auto",
) -> AttackResult:
    """Attack a batch: away from the prediction or, given labels `y`, towards the label where the prediction is wrong.

    `model` maps (B, ...) to logits (B, C), or to one logit whose sign is the prediction (labels 0 and 1). The
    classes considered are the `num_rivals` highest logits of the clean sample, its prediction included.
    strategy: "frugal", fast on a CPU, or "batched", fast on a GPU; "auto" chooses. The numbers are the same.
    """
    check_attack(steps, overshoot, num_rivals)
    check_images(x)
    how = strategy_for(strategy, x.device, x[:1].numel())
    with frozen(model, x) as model, torch.no_grad():
        clean = look(model, x)
        course = Course.of(clean, check_values(x, clean.f.detach(), y), num_rivals)
        path = walk(model, clean, course, how, steps=steps, overshoot=overshoot)
        # Judged at exactly the tensor that the caller can form: a smaller batch may round otherwise.
        success = course.arrived(look(model, x + path.delta, graph=False))
    return AttackResult(path.delta, path.norm, success, path.taken(), clean.prediction)


@torch.no_grad()
def walk(
    model: nn.Module,
    clean: View,
    course: Course,
    how: Strategy,
    followed: Tensor | None = None,
    first: Boundary | None = None,
    *,
    steps: int = 6,
    overshoot: float = 0.02,
) -> Walk:
    """Follow the attack from the clean samples, or from those `followed` (B,), whose `first` boundaries are known."""
    path = Walk.begin(clean.points.detach(), course, followed)
    rows: Tensor | slice = slice(None)  # of the batch, that are looked at
    view, near = clean, first
    if near is not None:
        rows = how.compact(path.moving)
        view, near = view.at(rows), near.at(rows)
    elif len(path.x) and not view.f.requires_grad:
        view = look(model, path.x)
    reach = path.x.new_full((len(path.x),), torch.inf)  # all rivals at first
    for i in range(steps):
        near = near or nearest_rival(model, view, course.at(rows), path.moving[rows], how, reach[rows])  # eq. 2
        if near is None:  # all have arrived
            break
        if i == 0:
            reach[rows] = LATER_REACH * near.spread()
        r, moved = step(near.gap, near.g, overshoot), path.moving[rows] & (near.distance < torch.inf)
        path.delta[rows] = torch.where(expand(moved, r), path.delta[rows] + r, path.delta[rows])  # eq. 4
        path.note(rows, moved, view, near.target)

        rows = how.compact(path.moving)
        there, near = path.here(rows), None
        if not len(there):  # nobody could move
            break
        view = look(model, there, graph=i + 1 < steps)
        path.arrive(rows, course.at(rows).arrived(view))
        if i + 1 < steps and how.pays_to_compact(path.moving[rows]):
            rows = how.compact(path.moving)
            view = look(model, path.here(rows))
    return path


def nearest_rival(
    model: nn.Module, view: View, course: Course, moving: Tensor, how: Strategy, reach: Tensor
) -> Boundary | None:
    """The nearest boundary of the rows that move, of the rivals within `reach` (n,) times the smallest gap, if any."""
    gap = course.gaps(view)
    too_far = gap < (reach * gap.amax(1)).unsqueeze(1)  # of an infinite reach, none
    wanted = moving.unsqueeze(1) & ~too_far
    return nearest(model, view, course.rivals, torch.where(wanted, gap, -torch.inf), how)


def nearest(model: nn.Module, view: View, rivals: Tensor, gap: Tensor, how: Strategy) -> Boundary | None:
    """Of the rivals whose gap is finite (n, K) the one whose linearised boundary, |gap| / ‖g‖ away, is nearest."""
    most = int((gap > -torch.inf).sum(1).amax()) if len(gap) else 0  # of a point; the one wait for the device
    if not most:
        return None
    gap, column = gap.topk(most)
    target = rivals.gather(1, column)  # (n, T)
    g = how.gradients(model, view, target, gap)  # (T, n, ...)
    size = g.flatten(2).norm(dim=2).T
    distance = -gap / size
    reachable = (distance / size < torch.finfo(size.dtype).max / 100) & (distance < FARTHEST)  # g may vanish
    distance, k = torch.where(reachable, distance, torch.inf).min(1, keepdim=True)
    target, gap = (values.gather(1, k).squeeze(1) for values in (target, gap))
    return Boundary(distance.squeeze(1), target, gap, g[k.squeeze(1), torch.arange(len(k), device=k.device)], size)


def step(gap: Tensor, g: Tensor, overshoot: float) -> Tensor:
    """r (n, ...): to the linearised boundary, where the gap would vanish, and a little beyond."""
    size = expand(norm(g), g)
    return -(1 + overshoot) * (expand(gap, g) / size) * (g / size)  # eq. 3


def margin(model: nn.Module, path: Walk, rows: Tensor, overshoot: float = 0.02, high_order: bool = True) -> Tensor:
    """‖Δ_x‖ of the given samples of a walk as a differentiable function of the weights, shape (len(rows),).

    Gradients flow through the logits and, with `high_order`, through ∇f, taken at fixed points: for piecewise-linear
    networks that is the exact derivative.
    """
    if not len(rows):
        return path.norm[rows].requires_grad_()
    moved, *columns = (torch.stack(column)[:, rows] for column in zip(*path.steps, strict=True))  # (steps, n, ...)
    when, at = moved.nonzero(as_tuple=True)  # of every point that was visited: in which step, by whom
    points, reference, target = (column[when, at] for column in columns)
    gap, g = gap_and_gradient(model, points, reference, target, graph=True)
    r = step(gap, g if high_order else g.detach(), overshoot)
    with torch.no_grad():
        normal = g.new_zeros(*moved.shape, *g.shape[1:])
        normal[when, at] = g / expand(norm(g), g)
        v = [path.delta[rows] / expand(path.norm[rows].clamp(min=torch.finfo(g.dtype).tiny), g)]  # of the last step
        for n in normal[1:].flip(0):  # of the steps before it, with what they make of it
            v.append(v[-1] - (1 + overshoot) * expand(dot(n, v[-1]), g) * n)
    change = dot(torch.stack(v[::-1])[when, at], r)
    return path.norm[rows].index_add(0, at, change - change.detach())
