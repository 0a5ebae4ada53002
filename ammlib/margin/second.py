"""What second derivatives want of a model: operations in a form that has one, or a cheaper one, and nothing put off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

NOT_PUT_OFF = (
    "AMM cannot differentiate what is computed again, or fetched, during backward, in another mode: "
    "switch off gradient checkpointing inside the model, and saved_tensors_hooks such as save_on_cpu around AMM"
)


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Inside, attention takes its plain form, which alone has a second derivative, and batch norm the one below."""
    with sdpa_kernel(SDPBackend.MATH), AffineBatchNorm(), disable_saved_tensors_hooks(NOT_PUT_OFF):
        yield


class AffineBatchNorm(TorchFunctionMode):
    """Batch norm by running statistics is the affine map that it amounts to.

    The second derivative of PyTorch's takes some 25 operations on the activations, as if these statistics were of the
    batch; that of a product takes two.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (batch_norm if function is F.batch_norm else function)(*args, **(kwargs or {}))


def batch_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """F.batch_norm, up to rounding."""
    if training or mean is None or var is None or x.dtype != var.dtype:  # the last: statistics in a precision of theirs
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    scale = torch.rsqrt(var + eps) if weight is None else weight * torch.rsqrt(var + eps)
    shift = -mean * scale if bias is None else bias - mean * scale
    scale, shift = (values.view(-1, *[1] * (x.ndim - 2)) for values in (scale, shift))  # (C, 1, ...)
    return torch.addcmul(shift, x, scale)
