"""Margins in the space of features: L-Softmax (Liu et al. 2016) and EM-Softmax (Wang et al. 2018)."""

import math
from copy import deepcopy
from itertools import permutations

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import unwrapped
from ammlib.methods.layers import head_of, replace_layer, watched
from ammlib.methods.losses import cross_entropy, soft_margin
from ammlib.methods.method import Batch, Method

CHEBYSHEV = {  # cos mθ of c = cos θ
    1: lambda c: c,
    2: lambda c: 2 * c**2 - 1,
    3: lambda c: 4 * c**3 - 3 * c,
    4: lambda c: 8 * c**4 - 8 * c**2 + 1,
}


def psi(c: Tensor, m: int) -> Tensor:
    """(-1)ᵏ cos mθ - 2k with k = ⌊mθ/π⌋: falls from 1 to 1 - 2m as θ goes from 0 to π, below cos θ in between."""
    k = (m * c.detach().clamp(-1, 1).acos() / math.pi).floor().clamp(max=m - 1)
    return (1 - 2 * (k % 2)) * CHEBYSHEV[m](c) - 2 * k


def large_margin_logits(f: Tensor, features: Tensor, weight: Tensor, y: Tensor, m: int, lam: float) -> Tensor:
    """Logits f = W v with (λ f_y + ‖w_y‖ ‖v‖ ψ(θ_y)) / (1 + λ) in the place of f_y."""
    label = y.unsqueeze(1)
    f_y, size = f.gather(1, label), (weight[y].norm(dim=1) * features.norm(dim=1)).unsqueeze(1).clamp(min=1e-12)
    hard = size * psi((f_y / size).clamp(-1, 1), m)
    return f.scatter(1, label, (lam * f_y + hard) / (1 + lam))


class LSoftmax(Method):
    """Cross-entropy in which the angle between a sample's features and the weights of its label counts m-fold.

    The last layer has no bias. After t steps the plain logit has weight λ = max(lam_min, lam (1 + gamma t)^-power).
    """

    def __init__(
        self, m: int = 4, lam: float = 1000.0, gamma: float = 2.5e-5, power: float = 35.0, lam_min: float = 0.0
    ) -> None:
        super().__init__()
        if m not in CHEBYSHEV:
            raise ValueError(f"m must be one of {', '.join(map(str, CHEBYSHEV))}, got {m}")
        if min(lam, gamma, power, lam_min) < 0:
            raise ValueError("lam, gamma, power and lam_min must not be negative")
        self.m, self.lam, self.gamma, self.power, self.lam_min = m, lam, gamma, power, lam_min

    def adapt(self, model: nn.Module) -> nn.Module:
        head_of(model).register_parameter("bias", None)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        head = head_of(unwrapped(model))
        with watched(head) as seen:
            logits = model(batch.x)
        lam = max(self.lam_min, self.lam * (1 + self.gamma * batch.step) ** -self.power)
        f = large_margin_logits(logits, seen[head][0], head.weight, batch.y, self.m, lam)
        return cross_entropy(f, batch.y), logits


class EMSoftmax(Method):
    """`heads` classifiers, each with the soft margin `m`, kept apart by `lam` times the HSIC of their weights.

    With one member they are last layers of one net; with as many members as heads, they are nets of their own. The
    mean of their logits predicts.
    """

    def __init__(self, m: float = 1.0, lam: float = 0.1, heads: int = 2, members: int = 1) -> None:
        super().__init__()
        if m < 0 or lam < 0:
            raise ValueError(f"m and lam must not be negative, got {m} and {lam}")
        if heads < 1 or members not in (1, heads):
            raise ValueError(f"members must be 1 or as many as the heads, {heads}; got {members}")
        self.m, self.lam, self.heads, self.members = m, lam, heads, members

    def adapt(self, model: nn.Module) -> nn.Module:
        part = head_of(model) if self.members == 1 else model
        return replace_layer(model, part, Committee([part, *(drawn_anew(part) for _ in range(1, self.heads))]))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        members = committee_of(unwrapped(model)).members
        with watched(*members) as seen:
            logits = model(batch.x)
        losses = (soft_margin(seen[member][1], batch.y, self.m) for member in members)
        return sum(losses, logits.new_zeros(())), logits

    def term(self, model: nn.Module, batch: Batch, logits: Tensor) -> Tensor:
        weights = [head_of(member).weight for member in committee_of(model).members]
        return self.lam * sum((hsic(u, v) for u, v in permutations(weights, 2)), logits.new_zeros(()))


class Committee(nn.Module):
    """The mean of what its members say."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return sum(member(x) for member in self.members) / len(self.members)


def committee_of(model: nn.Module) -> Committee:
    return next(module for module in model.modules() if isinstance(module, Committee))


def drawn_anew(part: nn.Module) -> nn.Module:
    """A copy with other random weights (Kaiming); vectors, such as biases, stay."""
    copy = deepcopy(part)
    for parameter in copy.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    return copy


def hsic(u: Tensor, v: Tensor) -> Tensor:
    """tr(K_u H K_v H) / (C - 1)² of weights (C, D): how much two classifiers agree on which classes are alike."""
    classes = len(u)
    H = torch.eye(classes).to(u) - 1 / classes
    return ((u @ u.T @ H) * (v @ v.T @ H).T).sum() / (classes - 1) ** 2


@torch.no_grad()
def folded(model: nn.Module) -> nn.Module:
    """The ordinary net that a net with several heads amounts to: one last layer with the mean of their weights."""
    model = deepcopy(model)
    committee = committee_of(model)
    if not all(isinstance(member, nn.Linear) for member in committee.members):
        raise ValueError("only the heads of one net can be folded, not several nets")
    head = deepcopy(committee.members[0])
    for name, parameter in head.named_parameters():
        parameter.copy_(torch.stack([getattr(member, name) for member in committee.members]).mean(0))
    return replace_layer(model, committee, head)
