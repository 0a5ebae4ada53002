"""The architectures of the paper: `MODELS[family][arch]` builds one, `make_model` also centres and initialises it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from ammlib.data.registry import DATASETS
from ammlib.margin.classifier import choose
from ammlib.models import cifar, imagenet, mnist, toy
from ammlib.models.layers import Centre, kaiming

MODELS: dict[str, dict[str, Callable[..., nn.Module]]] = {
    "mnist": {"mlp": mnist.mlp, "lenet": mnist.lenet, "liunet": mnist.liunet},
    "cifar": {
        "lenet": cifar.lenet,
        "nin": cifar.nin,
        "liunet": cifar.liunet,
        "resnet20": cifar.resnet20,
        "resnet56": cifar.resnet56,
        "resnet56_bottleneck": cifar.resnet56_bottleneck,
        "densenet40": cifar.densenet40,
    },
    "imagenet": {
        "resnet18": partial(imagenet.resnet, 18),
        "resnet50": partial(imagenet.resnet, 50),
        "resnet50_caffe": imagenet.resnet50_caffe,
        "senet50": imagenet.senet50,
    },
    "digits": {"mlp": partial(mnist.mlp, pixels=64, width=200)},
    "toy": {"linear": toy.linear},
}


def make_model(dataset: str, arch: str, num_classes: int | None = None, **options: Any) -> nn.Module:
    """A freshly initialised `arch` for images of `dataset` in [0, 1]; `options` go to the architecture."""
    entry = choose("data set", dataset, DATASETS)
    build = choose(f"architecture for {dataset}", arch, MODELS[entry.family])
    net = build(num_classes=num_classes or entry.num_classes, **options)
    return kaiming(nn.Sequential(Centre(entry.mean, entry.std), net))
