"""The community's CIFAR ResNets: where they are published, and their weights in the layout of our nets.

The published nets take (x - mean) / std; ours take images in [0, 1] and subtract the mean. Dividing by std commutes
with zero padding, so that it goes into the first convolution, and margins are in pixels.

A shortcut of option A leaves open which of the new channels are the old ones. Ours are the first; akamaster's are in
the middle, with half of the zeros before them. Only the order of the channels of a stage differs, so that permuting
what writes and reads them gives exactly the same net.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WIDTHS = (16, 32, 64)  # of the three stages
IN_NORM = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class Community:
    """A published net: its file, and what it computes."""

    author: str
    file: str  # its name under <data>/weights
    url: str
    sha256: str  # of the published file, or the first digits, which its name has
    digest: str  # `weights_digest` of the tensors in our layout: other files with the same tensors are as good
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shortcut: str  # "A" or "B", an option of our nets


def akamaster(arch: str, sha256: str, digest: str) -> Community:
    """github.com/akamaster/pytorch_resnet_cifar10 (BSD 2-clause): CIFAR-10, normalised as ImageNet."""
    url = f"https://github.com/akamaster/pytorch_resnet_cifar10/raw/master/pretrained_models/{arch}-{sha256[:8]}.th"
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return Community("akamaster", f"cifar10_{arch}_akamaster.th", url, sha256, digest, mean, std, shortcut="A")


def chenyaofo(arch: str, sha256: str, digest: str) -> Community:
    """github.com/chenyaofo/pytorch-cifar-models (BSD 3-clause): CIFAR-100."""
    releases = "https://github.com/chenyaofo/pytorch-cifar-models/releases/download/resnet"
    file, url = f"cifar100_{arch}_chenyaofo.pth", f"{releases}/cifar100_{arch}-{sha256}.pt"
    mean, std = (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)
    return Community("chenyaofo", file, url, sha256, digest, mean, std, shortcut="B")


COMMUNITY: dict[str, dict[str, Community]] = {  # data set -> arch
    "cifar10": {
        "resnet20": akamaster(
            "resnet20",
            sha256="12fca82f0bebc4135bf1f32f6e3710e61d5108578464b84fd6d7f5c1b04036c8",
            digest="ea7339b7bbcd19cc1918fcb5e27bde31376641b605603b06819bee1c34e01c66",
        ),
        "resnet56": akamaster(
            "resnet56",
            sha256="4bfd97631478d6b638d2764fd2baff3edb1d7d82252d54439343b6596b9b5367",
            digest="ed8132c3b465a3c7d225fc5c903e01022cc51ca28682a8262c0620dafcbd951c",
        ),
    },
    "cifar100": {
        "resnet20": chenyaofo(
            "resnet20",
            sha256="23dac2f1",
            digest="24fb94652abe36a0aed07d01464195dc3ed2fd1f3124443958f69df393b3ed10",
        ),
        "resnet56": chenyaofo(
            "resnet56",
            sha256="f2eff4c8",
            digest="13e927c52ba73c51537f6e9bda55bb06dc64293a39f96442489d73aa61101ad0",
        ),
    },
}


def options_of(dataset: str, arch: str) -> dict[str, Any]:
    """What `make_model` must be told to build the published net."""
    published = COMMUNITY.get(dataset, {}).get(arch)
    return {} if published is None else {"shortcut": published.shortcut}


def convert(weights: Mapping[str, Tensor], published: Community) -> dict[str, Tensor]:
    """The published tensors with the names, the order of channels and the first convolution of our net."""
    theirs = {name.removeprefix("module."): value for name, value in weights.items()}
    first = theirs["conv1.weight"]
    mean, std = (torch.tensor(c, dtype=first.dtype).view(-1, 1, 1) for c in (published.mean, published.std))
    ours = {"0.mean": mean, "1.0.weight": first / std, **norm(theirs, "bn1", "1.1")}
    blocks = sum(name.startswith("layer1.") and name.endswith(".conv1.weight") for name in theirs)
    read, position = channels(WIDTHS[0]), 3  # after convolution, batch norm and ReLU
    for stage, width in enumerate(WIDTHS, start=1):
        write = wider(read, width) if published.shortcut == "A" else channels(width)
        for i in range(blocks):
            ours |= block(theirs, f"layer{stage}.{i}", f"1.{position}", read, write)
            read, position = write, position + 1
    head = "linear" if "linear.weight" in theirs else "fc"
    last = f"1.{position + 2}"  # after pooling and flattening
    return ours | {f"{last}.weight": theirs[f"{head}.weight"][:, read], f"{last}.bias": theirs[f"{head}.bias"]}


def channels(width: int) -> Tensor:
    return torch.arange(width)


def wider(old: Tensor, width: int) -> Tensor:
    """Their channels in our order, when half of the new ones come before the old: the old ones first."""
    front = (width - len(old)) // 2
    new = [channel for channel in range(width) if not front <= channel < front + len(old)]
    return torch.cat([old + front, torch.tensor(new, dtype=torch.long)])


def block(theirs: Mapping[str, Tensor], name: str, our_name: str, read: Tensor, write: Tensor) -> dict[str, Tensor]:
    """A basic block that reads and writes the channels of its stages in our order; inside, the order stays."""
    branch, found = f"{our_name}.branch", {}
    found[f"{branch}.0.weight"] = theirs[f"{name}.conv1.weight"][:, read]
    found[f"{branch}.3.weight"] = theirs[f"{name}.conv2.weight"][write]
    found |= norm(theirs, f"{name}.bn1", f"{branch}.1") | norm(theirs, f"{name}.bn2", f"{branch}.4", write)
    if f"{name}.downsample.0.weight" in theirs:
        found[f"{our_name}.shortcut.0.weight"] = theirs[f"{name}.downsample.0.weight"]
        found |= norm(theirs, f"{name}.downsample.1", f"{our_name}.shortcut.1")
    return found


def norm(theirs: Mapping[str, Tensor], name: str, our_name: str, order: Tensor | None = None) -> dict[str, Tensor]:
    """A batch norm, without the number of batches that it has seen: old files lack it, and nothing depends on it."""
    found = {f"{our_name}.{part}": theirs[f"{name}.{part}"] for part in IN_NORM}
    return found if order is None else {part: value[order] for part, value in found.items()}
