"""Layers and initialisation that the architectures share."""

import torch
from torch import Tensor, nn


class Centre(nn.Module):
    """Subtracts the channel means (and divides by `std`), so that images enter a model in [0, 1] as they are."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...] | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", None if std is None else torch.tensor(std).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x - self.mean
        return x if self.std is None else x / self.std


def kaiming(model: nn.Module) -> nn.Module:
    """He et al.'s normal initialisation by fan-in with zero biases; normalisation layers start as identities."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
