"""Terms that keep the Jacobian of the logits small at the training samples; called like AMM."""

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import as_classes, frozen, unwrapped
from ammlib.margin.processes import Shares, world
from ammlib.methods.layers import apply_transposed, watched, weighted
from ammlib.methods.method import of_batch


class JacobianTerm(nn.Module):
    """`weight` / 2B times the sum of the samples' squared norms."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(f"the weight of the term must not be negative, got {weight}")
        self.weight = weight

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, logits: Tensor | None = None) -> Tensor:
        model, shares = unwrapped(model), Shares(len(x), x.device)
        return self.weight / 2 * self.squares(model, x, y).sum() / (shares.total / world())

    def squares(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Of each sample (B,)."""
        raise NotImplementedError


class Sokolic(JacobianTerm):
    """Sokolić et al. (2017) in the layer-wise form of a public implementation: α/2B Σ_l Σ_i ‖W_lᵀ g_l,i‖².

    g_l is the gradient of f_y at the output of the hidden layer l, held constant, so that no double backward is needed.
    """

    def __init__(self, alpha: float = 0.01) -> None:
        super().__init__(alpha)

    def squares(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hidden = weighted(model)[:-1]
        with frozen(model, x), watched(*hidden) as seen:
            f = as_classes(model(x))
        f_y = f.gather(1, y.unsqueeze(1)).sum()
        gradients = torch.autograd.grad(f_y, [seen[layer][1] for layer in hidden])  # g_l
        parts = zip(hidden, gradients, strict=True)
        pulled = [apply_transposed(layer, g, seen[layer][0].shape) for layer, g in parts]  # W_lᵀ g_l
        return sum((part.flatten(1).square().sum(1) for part in pulled), f.new_zeros(len(x)))


class Jacobian(JacobianTerm):
    """Hoffman et al. (2019): λ/2B Σ_i ‖J_i‖², with ‖J‖² = C E‖vᵀJ‖² from `projections` random unit vectors v."""

    def __init__(self, lam: float = 0.01, projections: int = 1) -> None:
        super().__init__(lam)
        if projections < 1:
            raise ValueError(f"projections must be at least 1, got {projections}")
        self.projections = projections

    def squares(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with frozen(model, x):
            f = as_classes(model(x))
        total = f.new_zeros(len(x))
        for _ in range(self.projections):
            v = of_batch(x, lambda n: torch.randn(n, f.shape[1], device=f.device)).to(f)
            v = v / v.norm(dim=1, keepdim=True)
            (g,) = torch.autograd.grad((v * f).sum(), x, create_graph=True)
            total = total + f.shape[1] * g.flatten(1).square().sum(1) / self.projections
        return total
