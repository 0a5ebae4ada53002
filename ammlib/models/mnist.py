"""The networks of the MNIST experiments (section 4.1.1), from images to logits."""

from itertools import pairwise

from torch import nn


def mlp(num_classes: int = 10, pixels: int = 784, width: int = 800) -> nn.Sequential:
    """Two hidden layers of 800 rectified units; 1,276,810 parameters on MNIST."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )


def lenet(num_classes: int = 10) -> nn.Sequential:
    """Caffe's LeNet: linear convolutions, each max-pooled, and one rectified layer of 500; 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * 4 * 4, 500),
        nn.ReLU(),
        nn.Linear(500, num_classes),
    )


def liunet(
    num_classes: int = 10,
    channels: int = 1,
    widths: tuple[int, ...] = (64, 64, 64, 64),
    depth: int = 3,
    pixels: int = 3 * 3,
    hidden: int = 256,
    groups: int | None = None,
) -> nn.Sequential:
    """Liu et al.'s net: one 3 x 3 convolution, then pooled groups of `depth`; 484,554 parameters on MNIST.

    Group norm replaces its batch norm ("group size 32"): with `groups` groups, or by default with 32 channels in each.
    """

    def convolution(inputs: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(groups or width // 32, width), nn.ReLU()]

    layers = convolution(channels, widths[0])
    for inputs, width in pairwise(widths):
        for i in range(depth):
            layers += convolution(width if i else inputs, width)
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(widths[-1] * pixels, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)]
    return nn.Sequential(*layers, nn.Flatten(), *head)
