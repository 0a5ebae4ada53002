"""The architectures of the paper: `MODELS[family][arch]` builds one, `make_model` also centres and initialises it."""

from functools import partial

from torch import nn

from ammlib.classifier import choose
from ammlib.models import mnist, toy
from ammlib.models.layers import Centre, kaiming

MODELS = {
    "mnist": {"mlp": mnist.mlp, "lenet": mnist.lenet, "liunet": mnist.liunet},
    "digits": {"mlp": partial(mnist.mlp, pixels=64, width=200)},
    "toy": {"linear": toy.linear},
}

# Which family fits a data set, its number of classes and the channel means that its models subtract.
DATASETS = {
    "mnist": ("mnist", 10, (0.1307,)),
    "digits": ("digits", 10, (0.3053,)),
    "toy": ("toy", 2, (0.0, 0.0)),
}


def make_model(dataset: str, arch: str, num_classes: int | None = None, **options) -> nn.Module:
    """A freshly initialised `arch` for images of `dataset` in [0, 1]; `options` go to the architecture."""
    family, usual_classes, mean = choose("data set", dataset, DATASETS)
    build = choose(f"architecture for {dataset}", arch, MODELS[family])
    return kaiming(nn.Sequential(Centre(mean), build(num_classes=num_classes or usual_classes, **options)))
