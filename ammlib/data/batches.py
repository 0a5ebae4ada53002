"""Batches of images (uint8) or points (float32) on the training device, and fixed-seed choices of them.

All randomness comes from CPU generators seeded by what it is for, so it is the same on every device, leaves the
global random state alone, and a run resumed at any step sees the batches of the uninterrupted one.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from ammlib.margin.classifier import random_state_kept
from ammlib.margin.processes import shard


def _generator(*key: object) -> torch.Generator:
    """A CPU generator that depends on the key alone; a word in the key keeps equal seeds of two uses apart."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


@contextmanager
def seeded(device: torch.device, *key: str | int) -> Iterator[None]:
    """What torch draws inside depends on the key alone; afterwards its random state is as before."""
    with random_state_kept(device):
        torch.manual_seed(_generator(*key).initial_seed())
        yield


def _resize36(x: Tensor) -> Tensor:
    """32 x 32 to 36 x 36, bilinear with half-pixel centres, rounded; antialiasing only matters when shrinking."""
    if x.shape[-2:] != (32, 32):
        raise ValueError(f"crop='resize36' is for 32 x 32 images, these are {x.shape[-2]} x {x.shape[-1]}")
    parts = x.cpu().split(1024)  # on the CPU, since another device may round a tie the other way; in parts for memory
    resized = [F.interpolate(part.float(), size=(36, 36), mode="bilinear").round_().to(torch.uint8) for part in parts]
    return torch.cat(resized).to(x.device)


# Each makes the larger images out of which crops of the original size are cut.
CROPS = {
    None: lambda x: x,
    "resize36": _resize36,  # the paper's
    "pad4": lambda x: F.pad(x, (4, 4, 4, 4)),  # the authors' code's
}


def _windows(x: Tensor, crop: str | None) -> Tensor:
    """A view (N, C, offsets down, offsets right, H, W) of all crops of every image: cropping is one indexing."""
    if crop not in CROPS:
        raise ValueError(f"unknown crop {crop!r}; choices: {', '.join(map(repr, CROPS))}")
    height, width = x.shape[-2:]
    return CROPS[crop](x).unfold(2, height, 1).unfold(3, width, 1)


def _check(x: Tensor, y: Tensor, batch_size: int) -> None:
    if x.dtype not in (torch.uint8, torch.float32) or x.ndim != 4:
        raise ValueError(f"images must be uint8 (N, C, H, W), or float32 points, got {x.dtype} {tuple(x.shape)}")
    if y.shape != x.shape[:1]:
        raise ValueError(f"{len(x)} images need labels of shape ({len(x)},), got {tuple(y.shape)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")


def model_input(x: Tensor) -> Tensor:
    """What a model takes: images as float32 in [0, 1]; points, which are float32 already, as they are."""
    return x if x.is_floating_point() else x.float().div_(255)


class Batches:
    """Training batches (x float32 in [0, 1], y), shuffled and augmented as a function of (seed, epoch, step).

    `crop` takes a random crop of the original size out of the enlarged image, `flip` mirrors half of the images; both
    are drawn anew for each image in each epoch. The last batch of an epoch may be smaller. Of several processes each
    gets its share of the same batch.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        batch_size: int,
        seed: int,
        crop: str | None = None,
        flip: bool = False,
    ):
        _check(x, y, batch_size)
        self.windows, self.y = _windows(x, crop), y
        self.batch_size, self.seed, self.flip = batch_size, seed, flip

    def __len__(self) -> int:
        return math.ceil(len(self.y) / self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, from step `start` on."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in 0 ... {len(self)}, the steps of an epoch, got {start}")
        draws = [map(shard, draw.split(self.batch_size)) for draw in self._draw(epoch)]
        for index, down, right, mirror in islice(zip(*draws, strict=True), start, None):
            x = self.windows[index, :, down, right]  # (B, C, H, W)
            if self.flip:
                x = torch.where(mirror[:, None, None, None], x.flip(-1), x)
            yield model_input(x), self.y[index]

    def indices(self, epoch: int, start: int = 0) -> list[Tensor]:
        """Which samples the batches of `epoch(epoch, start)` hold."""
        order = torch.randperm(len(self.y), generator=_generator("epoch", self.seed, epoch))  # the first that it draws
        return [shard(rows) for rows in order.split(self.batch_size)[start:]]

    def _draw(self, epoch: int) -> list[Tensor]:
        """Order, offsets and mirroring of a whole epoch: always all of them, so that no option changes another."""
        generator, n = _generator("epoch", self.seed, epoch), len(self.y)
        order = torch.randperm(n, generator=generator)
        mirror = torch.randint(2, (n,), generator=generator).bool()
        down, right = (torch.randint(self.windows.shape[d], (n,), generator=generator) for d in (2, 3))
        return [draw.to(self.y.device) for draw in (order, down, right, mirror)]


def subset(n_total: int, n: int, seed: int) -> Tensor:
    """Indices, sorted, of `n` of `n_total` at random; for one seed a smaller subset lies within a larger one."""
    if not 0 <= n <= n_total:
        raise ValueError(f"a subset of {n_total} has 0 ... {n_total} elements, asked for {n}")
    return torch.randperm(n_total, generator=_generator("subset", seed))[:n].sort().values


def validation_split(n_total: int, seed: int, n_val: int = 5000) -> tuple[Tensor, Tensor]:
    """Indices, sorted, of the training images that remain and of the `n_val` held out."""
    if not 0 <= n_val <= n_total:
        raise ValueError(f"cannot hold out {n_val} of {n_total}")
    order = torch.randperm(n_total, generator=_generator("validation", seed))
    return order[n_val:].sort().values, order[:n_val].sort().values


def half_of(n_total: int, which: str) -> Tensor:
    """Indices, sorted, of a fixed half: "search", to choose settings by, or "report", the others, for the results."""
    first, second = torch.randperm(n_total, generator=_generator("half")).tensor_split(2)
    return {"search": first, "report": second}[which].sort().values


def noisy_labels(y: Tensor, n_clean: int, num_classes: int, seed: int) -> Tensor:
    """`n_clean` labels at random stay; all others become uniform over the classes, so a few are right by chance.

    For one seed, the labels that stay with a smaller `n_clean` also stay with a larger.
    """
    if not 0 <= n_clean <= len(y):
        raise ValueError(f"n_clean must be in 0 ... {len(y)}, the number of labels, got {n_clean}")
    generator = _generator("noise", seed)
    noisy = torch.randperm(len(y), generator=generator)[n_clean:]
    noise = torch.randint(num_classes, (len(y),), generator=generator)
    result = y.clone()
    result[noisy.to(y.device)] = noise[noisy].to(y)
    return result
