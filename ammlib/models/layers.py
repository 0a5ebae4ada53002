"""Layers and initialisation that the architectures share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Centre(nn.Module):
    """Subtracts the channel means (and divides by `std`), so that images enter a model in [0, 1] as they are."""

    mean: Tensor
    std: Tensor | None

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...] | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", None if std is None else torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.mean
        return x if self.std is None else x / self.std


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))"""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


class OptionA(nn.Module):
    """He et al.'s shortcut without parameters: every `stride`-th pixel, and `extra` channels of zeros."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class Dense(nn.Sequential):
    """The input with the layers' output appended as further channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, super().forward(x)], 1)


def kaiming(model: nn.Module) -> nn.Module:
    """He et al.'s normal initialisation by fan-in with zero biases; normalisation layers start as identities."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
