"""How a classifier's logits change with its input: gaps between two classes, and their gradients, at many points."""

from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import class_logits


class View(NamedTuple):
    """Some points and the logits there; with a graph between them, gradients can be taken."""

    points: Tensor  # (n, ...)
    f: Tensor  # (n, C)


def look(model: nn.Module, points: Tensor, graph: bool = True) -> View:
    """The logits at some points, with or without a graph to these."""
    with torch.set_grad_enabled(graph):
        points = (points.clone() if points.is_inference() else points.detach()).requires_grad_(graph)
        f = class_logits(model, points)
    return View(points, f if graph else f.detach())


def gap_and_gradient(
    model: nn.Module, points: Tensor, reference: Tensor, target: Tensor | None = None, graph: bool = False
) -> tuple[Tensor, Tensor]:
    """`logit_gap` at each point, and its gradient with respect to the point."""
    points, f = look(model, points)
    with torch.enable_grad():
        gap = logit_gap(f, reference, target)
        if not gap.requires_grad:  # a constant
            return gap, torch.zeros_like(points)
        (g,) = torch.autograd.grad(gap.sum(), points, create_graph=graph, allow_unused=True, materialize_grads=True)
    return gap, g


def logit_gap(f: Tensor, reference: Tensor, target: Tensor | None = None) -> Tensor:
    """f_target - f_reference (B,); without a target, of the highest other class: positive beyond the boundary."""
    target = f.scatter(1, reference.unsqueeze(1), -torch.inf).argmax(1) if target is None else target
    return (f.gather(1, target.unsqueeze(1)) - f.gather(1, reference.unsqueeze(1))).squeeze(1)


def gap_gradients(model: nn.Module, view: View, at: Tensor, reference: Tensor, target: Tensor, turn: Tensor) -> Tensor:
    """∇(f_target - f_reference) of P pairs at the points `at` of a view, (P, ...); `turn` counts the pairs of a point.

    A backward pass through the view takes one pair of each point. Once more than half of its points have none left, it
    is cheaper to look at the others again.
    """
    if not view.f.requires_grad:  # a constant
        return torch.zeros_like(view.points[at])
    n = len(view.f)
    passes = max(1, int((2 * turn.bincount() > n).sum()))
    weights = view.f.new_zeros(passes, *view.f.shape)
    taken, left = (turn < passes).nonzero().squeeze(1), (turn >= passes).nonzero().squeeze(1)
    weights[turn[taken], at[taken], target[taken]] = 1
    weights[turn[taken], at[taken], reference[taken]] -= 1
    g = backward(model, view, weights)[turn.clamp(max=passes - 1), at]  # where none was taken, replaced now
    for part in left.split(n) if len(left) else ():
        g[part] = gap_and_gradient(model, view.points[at[part]], reference[part], target[part])[1]
    return g


def backward(model: nn.Module, view: View, weights: Tensor) -> Tensor:
    """∇⟨w, f⟩ at the points of a view for each w of `weights` (K, n, C), shape (K, n, ...); uses up the graph."""
    if len(weights) > 1 and not any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules()):
        with suppress(RuntimeError):  # an operation of the model that vmap cannot batch
            return torch.autograd.grad(view.f, view.points, weights, retain_graph=True, is_grads_batched=True)[0]
    # Of convolutions, a batched backward is no faster than one for each rival and needs K times the memory.
    last, options = len(weights) - 1, dict(allow_unused=True, materialize_grads=True)
    each = (
        torch.autograd.grad(view.f, view.points, w, retain_graph=k < last, **options) for k, w in enumerate(weights)
    )
    return torch.stack([g for (g,) in each])
