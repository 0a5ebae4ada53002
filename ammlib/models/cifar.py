"""The networks of the CIFAR-10, CIFAR-100 and SVHN experiments (section 4.1.2), from 3 x 32 x 32 images to logits."""

from collections.abc import Callable
from functools import partial

from torch import nn

from ammlib.margin.classifier import choose
from ammlib.models import mnist
from ammlib.models.layers import Dense, OptionA, Residual


def lenet(num_classes: int = 10) -> nn.Sequential:
    """Three 5 x 5 convolutions, each max-pooled, then rectified, and one hidden layer; 145,578 parameters."""

    def convolution(inputs: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, width, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()]

    features = [*convolution(3, 32), *convolution(32, 32), *convolution(32, 64)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes))


def nin(num_classes: int = 10) -> nn.Sequential:
    """Lin et al.'s network in network, without dropout, pooled 2 x 2 as in the authors' code; 966,986 parameters."""

    def block(inputs: int, kernel: int, a: int, b: int, c: int) -> list[nn.Module]:
        first = nn.Conv2d(inputs, a, kernel, padding=kernel // 2)
        return [first, nn.ReLU(), nn.Conv2d(a, b, 1), nn.ReLU(), nn.Conv2d(b, c, 1)]

    layers = [*block(3, 5, 192, 160, 96), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [*block(96, 5, 192, 192, 192), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, *block(192, 3, 192, 192, num_classes), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def liunet(num_classes: int = 10, wide: bool | None = None, groups: int | None = None) -> nn.Sequential:
    """Liu et al.'s net for CIFAR-10, 1,537,034 parameters, or the wide one for CIFAR-100, 9,346,340.

    `wide` is the default for more than 10 classes; `groups` as in `mnist.liunet`.
    """
    wide = num_classes > 10 if wide is None else wide
    widths, hidden = ((96, 96, 192, 384), 512) if wide else ((64, 64, 96, 128), 256)
    return mnist.liunet(num_classes, 3, widths, depth=4, pixels=4 * 4, hidden=hidden, groups=groups)


def resnet20(num_classes: int = 10, shortcut: str = "A") -> nn.Sequential:
    """He et al.'s CIFAR net, three basic blocks a stage; 269,722 parameters, with shortcuts of option B 272,474."""
    return resnet(partial(basic, shortcut=shortcut), 3, num_classes)


def resnet56(num_classes: int = 10, shortcut: str = "A") -> nn.Sequential:
    """He et al.'s CIFAR net, nine basic blocks a stage; 853,018 parameters, with shortcuts of option B 855,770."""
    return resnet(partial(basic, shortcut=shortcut), 9, num_classes)


def resnet56_bottleneck(num_classes: int = 10) -> nn.Sequential:
    """What the authors' code calls ResNet-56: nine bottleneck blocks a stage, 83 layers; 869,530 parameters."""
    return resnet(bottleneck, 9, num_classes, expansion=4)


def densenet40(num_classes: int = 10) -> nn.Sequential:
    """Huang et al.'s DenseNet, 12 layers a block, no bottleneck, no compression; 1,019,722 parameters."""
    width, growth = 16, 12
    layers: list[nn.Module] = [conv(3, width)]
    for block in range(3):
        if block:  # transition
            layers += [nn.BatchNorm2d(width), nn.ReLU(), conv(width, width, 1), nn.AvgPool2d(2)]
        for _ in range(12):
            layers.append(Dense(nn.BatchNorm2d(width), nn.ReLU(), conv(width, growth)))
            width += growth
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), *linear_of_mean(width, num_classes))


def resnet(block: Callable[..., nn.Module], blocks: int, num_classes: int, expansion: int = 1) -> nn.Sequential:
    """A 3 x 3 convolution and three stages of `blocks` blocks, of widths 16, 32, 64 at full, half, quarter size."""
    inputs, layers = 16, [*normed(3, 16), nn.ReLU()]
    for width in (16, 32, 64):
        for i in range(blocks):
            layers.append(block(inputs, width, stride=2 if i == 0 and width > 16 else 1))
            inputs = width * expansion
    return nn.Sequential(*layers, *linear_of_mean(inputs, num_classes))


# He et al.'s options where the sizes of a block's input and output differ: zeros for new channels, or a projection.
SHORTCUTS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "A": lambda inputs, width, stride: OptionA(stride, width - inputs),
    "B": lambda inputs, width, stride: nn.Sequential(*normed(inputs, width, 1, stride)),
}


def basic(inputs: int, width: int, stride: int, shortcut: str = "A") -> Residual:
    """Two 3 x 3 convolutions beside a shortcut."""
    change = choose("shortcut", shortcut, SHORTCUTS)
    branch = nn.Sequential(*normed(inputs, width, 3, stride), nn.ReLU(), *normed(width, width))
    return Residual(branch, nn.Identity() if inputs == width else change(inputs, width, stride))


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    """1 x 1, 3 x 3 and 1 x 1 convolutions to four times the width, beside a shortcut, projected where sizes differ."""
    narrow = [*normed(inputs, width, 1), nn.ReLU(), *normed(width, width, 3, stride), nn.ReLU()]
    shortcut = nn.Identity() if inputs == 4 * width else nn.Sequential(*normed(inputs, 4 * width, 1, stride))
    return Residual(nn.Sequential(*narrow, *normed(width, 4 * width, 1)), shortcut)


def conv(inputs: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the image, or divides it by `stride`."""
    return nn.Conv2d(inputs, width, kernel, stride, padding=kernel // 2, bias=False)


def normed(inputs: int, width: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    """A convolution and its batch norm."""
    return [conv(inputs, width, kernel, stride), nn.BatchNorm2d(width)]


def linear_of_mean(width: int, num_classes: int) -> list[nn.Module]:
    """Global average pooling and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)]
