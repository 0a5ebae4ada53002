"""Bayes by Backprop (Blundell et al. 2015): every weight is a normal distribution, whose mean is used in eval mode."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from ammlib.methods.layers import weighted
from ammlib.methods.method import Batch, Method, Task


class BayesByBackprop(Method):
    """The loss plus (log q(w) - log P(w)) / N of the weights drawn in a step, N the number of training samples.

    rho: where the deviations softplus(ρ) start; pi, minus_log_s1, minus_log_s2: the prior π N(0, s₁²) + (1 - π) N(0,
    s₂²); kl: the weight of that term, 1 in the paper. No weight decay: the prior takes its place.
    """

    def __init__(
        self,
        rho: float = -4.5,
        pi: float = 0.5,
        minus_log_s1: float = 0.0,
        minus_log_s2: float = 6.0,
        kl: float = 1.0,
    ) -> None:
        super().__init__()
        if not 0 < pi < 1:
            raise ValueError(f"pi must be between 0 and 1, got {pi}")
        if kl < 0:
            raise ValueError(f"kl must not be negative, got {kl}")
        self.rho, self.kl, self.samples = rho, kl, 1
        self.prior = pi, math.exp(-minus_log_s1), math.exp(-minus_log_s2)

    def adapt(self, model: nn.Module) -> nn.Module:
        for layer in weighted(model):
            for name in ("weight", "bias"):
                if getattr(layer, name) is not None:
                    register_parametrization(layer, name, Normal(getattr(layer, name), self.rho))
        return model

    def begin(self, model: nn.Module, task: Task) -> None:
        self.samples = task.samples

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{**group, "weight_decay": 0.0} for group in super().groups(model)]

    def term(self, model: nn.Module, batch: Batch, logits: Tensor) -> Tensor:
        normals = [module for module in model.modules() if isinstance(module, Normal)]
        divergences = (normal.divergence(*self.prior) for normal in normals)
        return self.kl / self.samples * sum(divergences, logits.new_zeros(()))


class Normal(nn.Module):
    """w = μ + softplus(ρ) ε, drawn whenever the weight is used in training; μ in eval mode."""

    def __init__(self, mu: Tensor, rho: float) -> None:
        super().__init__()
        self.rho = nn.Parameter(torch.full_like(mu, rho))
        self.drawn: tuple[Tensor, Tensor] | None = None

    def forward(self, mu: Tensor) -> Tensor:
        if not self.training:
            return mu
        epsilon = torch.randn_like(mu)
        w = mu + F.softplus(self.rho) * epsilon
        self.drawn = epsilon, w
        return w

    def divergence(self, pi: float, s1: float, s2: float) -> Tensor:
        """log q(w) - log P(w) of the weights drawn last, which are forgotten."""
        assert self.drawn is not None  # the loss has just used them
        (epsilon, w), self.drawn = self.drawn, None
        log_q = -F.softplus(self.rho).log() - epsilon**2 / 2 - math.log(2 * math.pi) / 2
        return (log_q - log_mixture(w, pi, s1, s2)).sum()


def log_mixture(w: Tensor, pi: float, s1: float, s2: float) -> Tensor:
    """log(π N(w; 0, s₁²) + (1 - π) N(w; 0, s₂²))"""
    wide, narrow = (-((w / s) ** 2) / 2 - math.log(s * math.sqrt(2 * math.pi)) for s in (s1, s2))
    return torch.logaddexp(math.log(pi) + wide, math.log1p(-pi) + narrow)
