"""The classifier of the toy data (section 3.3.3)."""

from torch import nn


def linear(num_classes: int = 2) -> nn.Sequential:
    """f(x) = w·x + b for points of the plane: one logit, whose sign is the prediction."""
    if num_classes != 2:
        raise ValueError(f"a single logit tells 2 classes apart, not {num_classes}")
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 1))
