"""The layers of a model as methods see them: which there are, what goes in and out, and their linear maps."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

Weighted = nn.Linear | nn.Conv2d


def weighted(model: nn.Module) -> list[Weighted]:
    """The layers with a weight matrix or kernel, in the order of the model; the last one gives the logits."""
    return [module for module in model.modules() if isinstance(module, Weighted)]


def head_of(model: nn.Module) -> nn.Linear:
    """The linear layer that gives the logits."""
    layers = weighted(model)
    if not layers or not isinstance(layers[-1], nn.Linear):
        raise ValueError("the method changes the last layer, which has to be an nn.Linear; this model ends otherwise")
    return layers[-1]


def replace_layer(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with another layer in the place of one."""
    if model is old:
        return new
    children = [(parent, *named) for parent in model.modules() for named in parent.named_children()]
    for parent, name, child in children:
        if child is old:
            setattr(parent, name, new)
    return model


@contextmanager
def watched(*layers: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """What goes into each layer and comes out of it when the model is called inside."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[layer] = inputs[0], output

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def apply(layer: Weighted, v: Tensor) -> Tensor:
    """Wv: the layer without its bias."""
    if isinstance(layer, nn.Linear):
        return F.linear(v, layer.weight)
    return F.conv2d(v, layer.weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)


def apply_transposed(layer: Weighted, g: Tensor, shape: torch.Size) -> Tensor:
    """Wᵀg, which has the shape of the layer's input."""
    if isinstance(layer, nn.Linear):
        return g @ layer.weight
    options = layer.stride, layer.padding, layer.dilation, layer.groups
    return conv2d_input(shape, layer.weight, g, *options)
