"""He et al.'s original ResNet-50, trained in Caffe and known through Keras, as weights of torchvision's modules.

Its images are BGR in 0 ... 255 less a mean colour, its convolutions have biases, its batch norm adds 1e-3 to the
variance, and the first 1 x 1 convolution of a block has the stride. All but the stride, which `resnet50_caffe`
places, becomes part of the weights, exactly: the same function, up to the rounding of float32.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

MEAN = (123.68, 116.779, 103.939)  # of red, green and blue in 0 ... 255
KERAS_EPS, TORCH_EPS = 1e-3, 1e-5  # of batch norm
BLOCKS = {1: "abc", 2: "abcd", 3: "abcdef", 4: "abc"}  # of torchvision's layer1 ... layer4; Keras counts from 2
BRANCHES = {
    "2a": ("conv1", "bn1"),
    "2b": ("conv2", "bn2"),
    "2c": ("conv3", "bn3"),
    "1": ("downsample.0", "downsample.1"),
}

Arrays = dict[str, np.ndarray[Any, Any]]


def names() -> dict[tuple[str, str], tuple[str, str]]:
    """(convolution, batch norm) of Keras to those of torchvision; the first block of a layer has a downsample too."""
    pairs = {("conv1", "bn_conv1"): ("conv1", "bn1")}
    for layer, letters in BLOCKS.items():
        for block, letter in enumerate(letters):
            for branch, (conv, norm) in BRANCHES.items():
                if branch != "1" or block == 0:
                    theirs, ours = f"{layer + 1}{letter}_branch{branch}", f"layer{layer}.{block}"
                    pairs[f"res{theirs}", f"bn{theirs}"] = f"{ours}.{conv}", f"{ours}.{norm}"
    return pairs


def fold(conv: str, norm: str, weights: Arrays) -> dict[str, Tensor]:
    """A Keras convolution with its batch norm as torch's: the bias goes into the mean, the epsilon into the variance.

    gamma (conv + bias - mean) / sqrt(var + 1e-3) + beta = gamma (conv - (mean - bias)) / sqrt(var' + 1e-5) + beta
    """
    mean, var = (weights[f"{norm}/moving_{name}"].astype(np.float64) for name in ("mean", "variance"))
    values = {
        "conv.weight": weights[f"{conv}/kernel"].transpose(3, 2, 0, 1),  # from (H, W, in, out)
        "norm.weight": weights[f"{norm}/gamma"],
        "norm.bias": weights[f"{norm}/beta"],
        "norm.running_mean": mean - weights[f"{conv}/bias"],
        "norm.running_var": var + (KERAS_EPS - TORCH_EPS),
    }
    return {name: torch.tensor(np.ascontiguousarray(value, dtype=np.float32)) for name, value in values.items()}


def convert(weights: Arrays) -> dict[str, Tensor]:
    """The weights of `make_model("imagenet", "resnet50_caffe")` from those of Keras by name."""
    state = {}
    for (conv, norm), ours in names().items():
        for name, value in fold(conv, norm, weights).items():
            kind, _, leaf = name.partition(".")
            state[f"1.{ours[kind == 'norm']}.{leaf}"] = value
    state["1.conv1.weight"] = state["1.conv1.weight"].flip(1).contiguous()  # BGR to RGB
    state["1.fc.weight"] = torch.tensor(weights["fc1000/kernel"].T.copy())
    state["1.fc.bias"] = torch.tensor(weights["fc1000/bias"])
    # The first convolution pads with zeros, which stand for the mean colour: so the means stay Caffe's own.
    state["0.mean"] = (torch.tensor(MEAN, dtype=torch.float64) / 255).float().view(-1, 1, 1)
    state["0.std"] = torch.full((3, 1, 1), 1 / 255)
    return state
