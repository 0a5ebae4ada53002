"""How a classifier's logits change with its input: gaps between two classes and their gradients, at many points.

A gap is f_k - f_reference: negative on the side of the reference, zero on the boundary, positive beyond.
"""

from contextlib import nullcontext, suppress
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ammlib.margin.classifier import choose, class_logits


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
    """The gap to `target` at each point, or without one to the highest other class; and its gradient there.

    With a `graph`, both are functions of the weights; attention then takes its plain form, which alone has a second
    derivative.
    """
    with sdpa_kernel(SDPBackend.MATH) if graph else nullcontext(), torch.enable_grad():
        points, f = look(model, points)
        gap = gap_to(f, reference, target)
        if not gap.requires_grad:  # a constant
            return gap, torch.zeros_like(points)
        (g,) = torch.autograd.grad(gap.sum(), points, create_graph=graph, allow_unused=True, materialize_grads=True)
    return gap, g


def gap_to(f: Tensor, reference: Tensor, target: Tensor | None = None) -> Tensor:
    """f_target - f_reference (n,); without a target, of the highest other class."""
    target = f.scatter(1, reference.unsqueeze(1), -torch.inf).argmax(1) if target is None else target
    return (f.gather(1, target.unsqueeze(1)) - f.gather(1, reference.unsqueeze(1))).squeeze(1)


# ---- (point, rival) pairs


class Pairs(NamedTuple):
    """n points, T rivals of each, and the gradients of the gaps between them."""

    gap: Tensor  # (n, T) infinite where nothing is known
    target: Tensor  # (n, T)
    g: Tensor  # (P, ...)
    place: Tensor  # (n, T) which of them is a pair's


class Strategy(Protocol):
    """How the gradients of many pairs are taken, and whether rows that need none are left out."""

    at_once: bool  # look at all pairs at once, rather than at a few to see which others are worth it

    def compact(self, mask: Tensor) -> Tensor | slice:
        """The rows to go on with, at least those where `mask` (n,) holds."""

    def pays_to_compact(self, mask: Tensor) -> bool:
        """Is it cheaper to look at the rows of `mask` again than to go on with all that a view has?"""

    def gradients(
        self, model: nn.Module, view: View, reference: Tensor, rivals: Tensor, gap: Tensor, wanted: Tensor
    ) -> Pairs | None:
        """∇(f_rival - f_reference) of at least the `wanted` (n, K) pairs, a point's smallest gaps; None if none is."""


class Frugal:
    """For a CPU, whose time is arithmetic: no row and no pair that is not needed."""

    at_once = False

    def compact(self, mask: Tensor) -> Tensor:
        return mask.nonzero().squeeze(1)

    def pays_to_compact(self, mask: Tensor) -> bool:
        return 2 * int(mask.sum()) <= len(mask)

    def gradients(
        self, model: nn.Module, view: View, reference: Tensor, rivals: Tensor, gap: Tensor, wanted: Tensor
    ) -> Pairs | None:
        """A backward pass through the view takes one pair of each point, its first, then its second, ...

        Once more than half of the points have none left, it is cheaper to look at the others again.
        """
        row, k = wanted.nonzero(as_tuple=True)
        if not len(row):
            return None
        n, turn = len(view.f), wanted.cumsum(1)[row, k] - 1  # counts the pairs of a point
        reference, target = reference[row], rivals[row, k]
        passes = max(1, int((2 * turn.bincount() > n).sum()))
        weights = view.f.new_zeros(passes, *view.f.shape)
        taken, left = (turn < passes).nonzero().squeeze(1), (turn >= passes).nonzero().squeeze(1)
        weights[turn[taken], row[taken], target[taken]] = 1
        weights[turn[taken], row[taken], reference[taken]] -= 1
        batched = not any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
        g = backward(view, weights, batched)[turn.clamp(max=passes - 1), row]  # where none was taken, replaced now
        for part in left.split(n) if len(left) else ():
            g[part] = gap_and_gradient(model, view.points[row[part]], reference[part], target[part])[1]
        place = (wanted.flatten().cumsum(0) - 1).view_as(wanted)
        return Pairs(torch.where(wanted, gap, -torch.inf), rivals, g, place)


class Batched:
    """For a GPU, where a small net costs what it launches: all rows, all pairs in one batched backward pass."""

    at_once = True

    def compact(self, mask: Tensor) -> slice:
        return slice(None)

    def pays_to_compact(self, mask: Tensor) -> bool:
        return False

    def gradients(
        self, model: nn.Module, view: View, reference: Tensor, rivals: Tensor, gap: Tensor, wanted: Tensor
    ) -> Pairs | None:
        passes = int(wanted.sum(1).amax()) if len(wanted) else 0  # the one wait for the device
        if not passes:
            return None
        gap, column = gap.topk(passes)
        target = rivals.gather(1, column)  # (n, passes)
        weights = view.f.new_zeros(passes, *view.f.shape).scatter_(2, target.T.unsqueeze(2), 1)
        weights.scatter_(2, reference.view(1, -1, 1).expand(passes, -1, 1), -1)
        g = backward(view, weights, batched=True)  # (passes, n, ...)
        place = torch.arange(passes * len(gap), device=gap.device).view(passes, -1).T
        return Pairs(gap, target, g.flatten(0, 1), place)


SMALL = 3 * 64 * 64  # numbers of a sample, up to which a net on a GPU costs what it launches
STRATEGIES: dict[str, Strategy] = {"frugal": Frugal(), "batched": Batched()}


def strategy_for(name: str, device: torch.device, numel: int = 0) -> Strategy:
    """The strategy of this name; "auto" is batched on a GPU for small samples: K times as many must fit into memory."""
    if name == "auto":
        name = "frugal" if device.type == "cpu" or numel > SMALL else "batched"
    return choose("strategy", name, STRATEGIES)


def backward(view: View, weights: Tensor, batched: bool) -> Tensor:
    """∇⟨w, f⟩ at the points of a view for each w of `weights` (K, n, C), shape (K, n, ...); uses up the graph.

    Batched, all passes are one; of convolutions on a CPU that is no faster and needs K times the memory.
    """
    if not view.f.requires_grad:  # a constant
        return torch.zeros_like(view.points).expand(len(weights), *view.points.shape)
    if len(weights) > 1 and batched:
        with suppress(RuntimeError):  # an operation of the model that vmap cannot batch
            return torch.autograd.grad(view.f, view.points, weights, retain_graph=True, is_grads_batched=True)[0]
    last, options = len(weights) - 1, dict(allow_unused=True, materialize_grads=True)
    each = (
        torch.autograd.grad(view.f, view.points, w, retain_graph=k < last, **options) for k, w in enumerate(weights)
    )
    return torch.stack([g for (g,) in each])
