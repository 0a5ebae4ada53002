"""The networks of the MNIST experiments (section 4.1.1), from images to logits."""

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


def liunet(num_classes: int = 10, channels_per_group: int = 32) -> nn.Sequential:
    """Liu et al.'s 12-layer net, group norm ("group size 32") in place of batch norm: 1 + 3 x 3 convolutions of 64."""

    def convolution(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 64, 3, padding=1), nn.GroupNorm(64 // channels_per_group, 64), nn.ReLU()]

    def group() -> list[nn.Module]:
        return [*convolution(64), *convolution(64), *convolution(64), nn.MaxPool2d(2)]

    features = [*convolution(1), *group(), *group(), *group()]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(64 * 3 * 3, 256), nn.ReLU(), nn.Linear(256, num_classes))
