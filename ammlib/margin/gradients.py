"""How a classifier's logits change with its input: gaps between two classes and their gradients, at many points.

A gap is f_k - f_reference: negative on the side of the reference, zero on the boundary, positive beyond.
"""

from contextlib import nullcontext, suppress
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import as_classes, choose, class_logits, differs_in_eval_mode
from ammlib.margin.second import twice_differentiable


class View(NamedTuple):
    """Some points and the logits there; with a graph between them, gradients can be taken."""

    points: Tensor  # (n, ...)
    f: Tensor  # (n, C)
    top: Tensor  # (n,) the highest logit; NaN if one of them is
    prediction: Tensor  # (n,) its class

    @classmethod
    def of(cls, points: Tensor, f: Tensor) -> "View":
        if f.ndim != 2 or len(f) != len(points):
            raise ValueError(f"logits must have shape ({len(points)}, classes), got {tuple(f.shape)}")
        return cls(points, f, *f.detach().max(1))

    def at(self, rows: Tensor | slice) -> "View":
        """Of some of the points, without a graph."""
        return View(*(part.detach()[rows] for part in self))


def look(model: nn.Module, points: Tensor, graph: bool = True) -> View:
    """The logits at some points, with or without a graph to these."""
    with torch.set_grad_enabled(graph):
        points = (points.clone() if points.is_inference() else points.detach()).requires_grad_(graph)
        f = class_logits(model, points)
    return View.of(points, f if graph else f.detach())


def known_view(model: nn.Module, x: Tensor, logits: Tensor | None) -> View | None:
    """The clean samples with the caller's logits, if these are what a look would give."""
    if logits is None:
        return None
    view = View.of(x, as_classes(logits, len(x)).detach())
    others = view.f.dtype != x.dtype or torch.is_autocast_enabled(x.device.type) or differs_in_eval_mode(model)
    return None if others else view


def gap_and_gradient(
    model: nn.Module, points: Tensor, reference: Tensor, target: Tensor | None = None, graph: bool = False
) -> tuple[Tensor, Tensor]:
    """The gap to `target` at each point, or without one to the highest other class; and its gradient there.

    With a `graph`, both are functions of the weights.
    """
    with twice_differentiable() if graph else nullcontext(), torch.enable_grad():
        points, f = look(model, points)[:2]
        gap = gap_to(f, reference, target)
        if not gap.requires_grad:  # a constant
            return gap, torch.zeros_like(points)
        (g,) = torch.autograd.grad(gap.sum(), points, create_graph=graph, allow_unused=True, materialize_grads=True)
    return gap, g


def gap_to(f: Tensor, reference: Tensor, target: Tensor | None = None) -> Tensor:
    """f_target - f_reference (n,); without a target, of the highest other class."""
    target = f.scatter(1, reference.unsqueeze(1), -torch.inf).argmax(1) if target is None else target
    return (f.gather(1, target.unsqueeze(1)) - f.gather(1, reference.unsqueeze(1))).squeeze(1)


# ---- the gradients of many gaps


class Strategy(Protocol):
    """How the gradients towards T rivals of each point are taken, and whether rows that need none are left out."""

    at_once: bool  # look at all rivals at once, rather than at a few to see which others are worth it

    def compact(self, mask: Tensor) -> Tensor | slice:
        """The rows to go on with, at least those where `mask` (n,) holds."""

    def pays_to_compact(self, mask: Tensor) -> bool:
        """Is it cheaper to look at the rows of `mask` again than to go on with all that a view has?"""

    def gradients(self, model: nn.Module, view: View, target: Tensor, gap: Tensor) -> Tensor:
        """∇(f_target - f_prediction), shape (T, n, ...), at least where `gap` (n, T) is finite, a row's first ones."""


class Frugal:
    """For a CPU, whose time is arithmetic: no row and no gradient that is not needed."""

    at_once = False

    def compact(self, mask: Tensor) -> Tensor:
        return mask.nonzero().squeeze(1)

    def pays_to_compact(self, mask: Tensor) -> bool:
        return 0 < 2 * int(mask.sum()) <= len(mask)

    def gradients(self, model: nn.Module, view: View, target: Tensor, gap: Tensor) -> Tensor:
        """A backward pass through the view takes the first target of each point, one more the second, ...

        Once more than half of the points have none left, it is cheaper to look at the others again.
        """
        wanted, n = gap > -torch.inf, len(gap)
        passes = max(1, int((2 * wanted.sum(0) > n).sum()))
        g = backward(model, view, differences(view, target[:, :passes]))
        if passes == wanted.shape[1]:
            return g
        g = torch.cat([g, g.new_zeros(wanted.shape[1] - passes, *g.shape[1:])])
        rows, columns = wanted[:, passes:].nonzero(as_tuple=True)
        for row, k in zip(torch.split(rows, n), torch.split(columns + passes, n), strict=True):
            g[k, row] = gap_and_gradient(model, view.points[row], view.prediction[row], target[row, k])[1]
        return g


class Batched:
    """For a GPU, where a small net costs what it launches: all rows, and a row of one batch for each gradient."""

    at_once = True

    def compact(self, mask: Tensor) -> slice:
        return slice(None)

    def pays_to_compact(self, mask: Tensor) -> bool:
        return False

    def gradients(self, model: nn.Module, view: View, target: Tensor, gap: Tensor) -> Tensor:
        weights = differences(view, target)
        if len(weights) > 1:
            view = look(model, torch.cat([view.points.detach()] * len(weights)))
        return backward(model, view, weights.flatten(0, 1).unsqueeze(0)).view(
            *weights.shape[:2], *view.points.shape[1:]
        )


def differences(view: View, target: Tensor) -> Tensor:
    """w (T, n, C) with ⟨w, f⟩ = f_target - f_prediction."""
    w = view.f.new_zeros(target.shape[1], *view.f.shape).scatter_(2, target.T.unsqueeze(2), 1)
    return w.scatter_(2, view.prediction.view(1, -1, 1).expand(len(w), -1, 1), -1, reduce="add")


def backward(model: nn.Module, view: View, weights: Tensor) -> Tensor:
    """∇⟨w, f⟩ at the points of a view for each w of `weights` (T, n, C), shape (T, n, ...); uses up the graph."""
    if not view.f.requires_grad:  # a constant
        return torch.zeros_like(view.points).expand(len(weights), *view.points.shape)
    if len(weights) > 1 and not any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules()):
        # All passes in one: of convolutions, on a CPU, that is no faster and needs T times the memory.
        with suppress(RuntimeError):  # an operation of the model that vmap cannot batch
            return torch.autograd.grad(view.f, view.points, weights, retain_graph=True, is_grads_batched=True)[0]
    last, options = len(weights) - 1, dict(allow_unused=True, materialize_grads=True)
    each = [
        torch.autograd.grad(view.f, view.points, w, retain_graph=k < last, **options) for k, w in enumerate(weights)
    ]
    return torch.stack([g for (g,) in each]) if last else each[0][0].unsqueeze(0)


SMALL = 3 * 64 * 64  # numbers of a sample, up to which a net on a GPU costs what it launches
STRATEGIES: dict[str, Strategy] = {"frugal": Frugal(), "batched": Batched()}


def strategy_for(name: str, device: torch.device, numel: int = 0) -> Strategy:
    """The strategy of this name; "auto" is batched on a GPU for small samples: K times as many must fit into memory."""
    if name == "auto":
        name = "frugal" if device.type == "cpu" or numel > SMALL else "batched"
    return choose("strategy", name, STRATEGIES)
