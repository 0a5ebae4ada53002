"""ImageNet, and data like it, as folders of image files that are read while they are needed."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples

from ammlib.data.batches import Batches, _generator, model_input
from ammlib.data.sources import DataError

SIZE = 224
WORKERS = min(8, os.cpu_count() or 1)  # processes that decode images
LAYOUT = "train/<class>/*.JPEG and val/<class>/*.JPEG"


def augmentation(train: bool) -> list[Callable[[Any], Any]]:
    """Training: crops of 8 to 100 % of the area with aspect 3/4 to 4/3, half of them mirrored (section 4.1.3).

    Test: the centre crop after the short side is resized to 256.
    """
    from ammlib.data.vision import torchvision  # here because it takes seconds, and most data sets do without

    t = torchvision.transforms
    if train:
        return [t.RandomResizedCrop(SIZE, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)), t.RandomHorizontalFlip()]
    return [t.Resize(256), t.CenterCrop(SIZE)]


def image_folder(path: str | os.PathLike[str], train: bool) -> Any:
    """ImageNet's `train` or `val` folder (`<wnid>/*.JPEG`) as torchvision's ImageFolder: 3 x 224 x 224 in [0, 1].

    Normalisation is the model's first layer.
    """
    from ammlib.data.vision import torchvision

    folder = Path(path) / ("train" if train else "val")
    if not folder.is_dir():
        raise DataError(f"no folder {folder}; image data needs {LAYOUT} in {path}")
    t = torchvision.transforms
    try:
        return torchvision.datasets.ImageFolder(folder, t.Compose([*augmentation(train), t.ToTensor()]))
    except FileNotFoundError as error:  # no classes, or one without images
        raise DataError(f"{folder} is not like {LAYOUT}: {error}") from error


class Reader(Samples[Tensor]):
    """Decodes one file as uint8 (3, 224, 224); what is random in training depends on the key and the row alone."""

    def __init__(self, paths: Sequence[str], key: tuple[int, int] | None) -> None:
        self.paths, self.key = paths, key

    def __getitem__(self, row: int) -> Tensor:
        from ammlib.data.vision import torchvision  # also in workers that do not fork

        seed = _generator("image", self.key, row).initial_seed()
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seed)  # the CPU only, which the transforms draw from
            image = torchvision.datasets.folder.pil_loader(self.paths[row])
            for transform in augmentation(train=self.key is not None):
                image = transform(image)
            return torchvision.transforms.functional.pil_to_tensor(image)


def stack(images: list[Tensor]) -> Tensor:
    """A batch of images, perhaps of none: of several processes, some may have no share of the last one."""
    return torch.stack(images) if images else torch.empty(0, 3, SIZE, SIZE, dtype=torch.uint8)


class ImageFiles:
    """Images of a folder, which are counted and chosen like the rows of a tensor, and read only when they are needed.

    `device` is where they come to then.
    """

    def __init__(self, paths: Sequence[str], device: torch.device | str = "cpu") -> None:
        self.paths, self.device = list(paths), torch.device(device)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self), 3, SIZE, SIZE])

    @property
    def listing(self) -> Tensor:
        """Class, name and size of each file, as bytes: what tells these images from others without reading them."""
        lines = (f"{'/'.join(Path(path).parts[-2:])} {os.path.getsize(path)}" for path in self.paths)
        return torch.frombuffer(bytearray("\n".join(lines), "utf-8"), dtype=torch.uint8)

    def __getitem__(self, rows: Tensor | slice) -> "ImageFiles":
        chosen = torch.arange(len(self))[rows.cpu() if isinstance(rows, Tensor) else rows]
        return ImageFiles([self.paths[row] for row in chosen.tolist()], self.device)

    def to(self, device: torch.device | str) -> "ImageFiles":
        return ImageFiles(self.paths, device)

    def read(self, parts: Sequence[Tensor], key: tuple[int, int] | None = None) -> Iterator[Tensor]:
        """Batches uint8 (B, 3, 224, 224) of the rows of each part, decoded in worker processes.

        With a key, a seed and an epoch, they are augmented as for training.
        """
        loader = DataLoader(
            Reader(self.paths, key),
            batch_sampler=[part.tolist() for part in parts],
            collate_fn=stack,
            num_workers=min(WORKERS, len(parts)),
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # which it draws from; the global one stays as it is
        )
        return (images.to(self.device, non_blocking=True) for images in loader)


Images = Tensor | ImageFiles


def in_parts(x: Images, size: int) -> Iterator[Tensor]:
    """Test images as models take them, float32 in [0, 1], `size` at a time."""
    parts = x.split(size) if isinstance(x, Tensor) else x.read(torch.arange(len(x)).split(size))
    return map(model_input, parts)


def at_once(x: Images) -> Tensor:
    """Test images as models take them, all of them."""
    return model_input(x) if isinstance(x, Tensor) else torch.cat(list(in_parts(x, 32)))


class FolderBatches(Batches):
    """Training batches of image files: order, crops and mirroring are a function of (seed, epoch) and the image."""

    def __init__(self, x: ImageFiles, y: Tensor, batch_size: int, seed: int) -> None:
        self.x, self.y, self.batch_size, self.seed = x, y, batch_size, seed

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, from step `start` on."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in 0 ... {len(self)}, the steps of an epoch, got {start}")
        parts = self.indices(epoch, start)
        for rows, images in zip(parts, self.x.read(parts, (self.seed, epoch)), strict=True):
            yield model_input(images), self.y[rows.to(self.y.device)]


def make_batches(x: Images, y: Tensor, batch_size: int, seed: int, crop: str | None, flip: bool) -> Batches:
    """Training batches of images in memory, or of files, which have their own crops and are always mirrored."""
    if isinstance(x, Tensor):
        return Batches(x, y, batch_size, seed, crop=crop, flip=flip)
    if crop is not None:
        raise ValueError(f"crop={crop!r} is for images in memory; image files have crops of their own")
    return FolderBatches(x, y, batch_size, seed)
