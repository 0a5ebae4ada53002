"""The architectures of the paper: `MODELS[family][arch]` builds one, `make_model` also centres and initialises it."""

from functools import partial

from torch import nn

from ammlib.margin.classifier import choose
from ammlib.models import cifar, imagenet, mnist, toy
from ammlib.models.layers import Centre, kaiming

MODELS = {
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

# Which family fits a data set, its number of classes, the channel means that its models subtract and, if they divide
# by them too, the standard deviations: all as in the authors' code, but for the digits and the toy.
DATASETS = {
    "mnist": ("mnist", 10, (0.1307,)),
    "cifar10": ("cifar", 10, (0.4914, 0.4822, 0.4465)),
    "cifar100": ("cifar", 100, (0.5071, 0.4867, 0.4408)),
    "svhn": ("cifar", 10, (0.4376, 0.4437, 0.4728)),
    "imagenet": ("imagenet", 1000, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "digits": ("digits", 10, (0.3053,)),
    "digits32": ("cifar", 10, (0.3053, 0.3053, 0.3053)),
    "toy": ("toy", 2, (0.0, 0.0)),
}


def margin_std(dataset: str) -> tuple[float, ...] | None:
    """The standard deviations in whose units the margins of a data set are reported; None: in pixel units."""
    return (*DATASETS[dataset], None)[3]


def make_model(dataset: str, arch: str, num_classes: int | None = None, **options) -> nn.Module:
    """A freshly initialised `arch` for images of `dataset` in [0, 1]; `options` go to the architecture."""
    family, usual_classes, *centre = choose("data set", dataset, DATASETS)
    build = choose(f"architecture for {dataset}", arch, MODELS[family])
    return kaiming(nn.Sequential(Centre(*centre), build(num_classes=num_classes or usual_classes, **options)))
