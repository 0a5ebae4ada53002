"""What can be done without ImageNet, on a sample of its images, stored as JSON in results/imagenet/.

`python -m ammlib sample margins` measures the images of `<data>/imagenet_sample/val/<wnid>/` in a fixed random order
with a pretrained net and stores what it has after every few: it may be stopped at any time, and a second call goes on.
`python -m ammlib sample fine_tuning` takes two steps of AMM from the same weights.
"""

import hashlib
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.data.datasets import data_root, load_data
from ammlib.data.files import write_atomically
from ammlib.data.folders import image_folder
from ammlib.data.registry import DATASETS
from ammlib.data.sources import DataError
from ammlib.margin.deepfool import deepfool
from ammlib.margin.margins import in_units_of
from ammlib.models import make_model
from ammlib.models.pretrained import pretrained
from ammlib.models.weights import weights_digest
from ammlib.training.device import best_device, placed
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import results_root
from ammlib.training.sums import Sums
from ammlib.training.train import Training

FOLDER = "imagenet_sample"
STD = DATASETS["imagenet"].std or ()
FEW = 4  # images at a time: ten gradients of a ResNet-50 each


@dataclass
class Sample:
    """Top-1 predictions of all images, in the order of the folder, and margins of some, in a random order."""

    arch: str
    weights: str  # SHA-256
    versions: dict[str, str]
    device: str
    images: str  # SHA-256 of their names
    labels: list[int]
    predictions: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # of the images with margins; the columns below have their order
    pixel: list[float] = field(default_factory=list)  # DeepFool norms: a pixel is from 0 to 1
    std: list[float] = field(default_factory=list)  # the same perturbations, each channel divided by its deviation
    steps: list[int] = field(default_factory=list)
    success: list[bool] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Top-1 error in % over the images predicted so far."""
        wrong = [p != y for p, y in zip(self.predictions, self.labels, strict=False)]
        return 100 * sum(wrong) / len(wrong)


def path_of(kind: str, arch: str) -> Path:
    return results_root() / "imagenet" / f"{kind}_{arch}.json"


def store(kind: str, arch: str, values: dict[str, Any]) -> None:
    text = json.dumps(values, allow_nan=False) + "\n"
    write_atomically(path_of(kind, arch), lambda file: file.write(text.encode()))


def stored(kind: str, arch: str) -> dict[str, Any] | None:
    """What "sample" or "fine_tuning" stored for a net, if anything."""
    path = path_of(kind, arch)
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def load_sample(arch: str) -> Sample | None:
    """The stored measurement of a net, if there is one, perhaps of few images."""
    values = stored("sample", arch)
    return None if values is None else Sample(**values)


def measure_sample(arch: str, count: int) -> Sample:
    """Predictions of all images and margins of `count`; goes on from what is stored of the same net."""
    images = image_folder(data_root() / FOLDER, train=False)
    device, weights = best_device(), pretrained("imagenet", arch, len(images.classes))
    model = make_model("imagenet", arch, len(images.classes))
    model.load_state_dict(weights)
    model = placed(model, device).eval()
    names = "\n".join(Path(path).name for path, _ in images.samples)
    digest = hashlib.sha256(names.encode()).hexdigest()
    sample = Sample(arch, weights_digest(weights), versions(), device.type, digest, images.targets)
    known = load_sample(arch)
    if known is not None:
        if (known.weights, known.images) != (sample.weights, sample.images):
            path = path_of("sample", arch)
            raise DataError(f"{path} was measured with other images or weights; move it away to measure these")
        sample = known
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    todo = range(len(sample.predictions), len(images)), order[len(sample.rows) : count]
    for rows, add in zip(todo, (add_predictions, add_margins), strict=True):
        for start in tqdm(range(0, len(rows), FEW), add.__name__):
            chosen = list(rows[start : start + FEW])
            x = torch.stack([images[row][0] for row in chosen]).to(device)
            add(sample, model, x, chosen)
            store("sample", arch, asdict(sample))
    return sample


def add_predictions(sample: Sample, model: nn.Module, x: Tensor, rows: list[int]) -> None:
    with torch.no_grad():
        sample.predictions += model(x).argmax(1).tolist()


def add_margins(sample: Sample, model: nn.Module, x: Tensor, rows: list[int]) -> None:
    """DeepFool from the predicted class.

    It attacks in pixel units, the paper in std units: as the channels' deviations differ by 2 %, that hardly matters.
    """
    found = deepfool(model, x)
    std = in_units_of(STD, found.delta)
    sample.rows += rows
    sample.pixel += [round(value, 5) for value in found.norm.tolist()]
    sample.std += [round(value, 5) for value in std.tolist()]
    sample.steps += found.steps.tolist()
    sample.success += found.success.tolist()


def fine_tune(arch: str, images: int = 16, batch: int = 8) -> dict[str, Any]:
    """A few steps of AMM from the pretrained weights on random crops; their margins (std units) before and after."""
    recipe = make_recipe(FOLDER, arch, "amm", "short", "imagenet", train_size=images, batch=batch)
    data = prepare_data(recipe, load_data(FOLDER))
    training = Training(recipe, 0, data, pretrained("imagenet", arch, data.num_classes))
    crops, steps, started = list(training.batches.epoch(0)), [], time.monotonic()
    before = batch_margins(training.model, crops)
    for x, y in crops:
        training.sums = Sums()
        training.take_step(x, y)
        per = {"loss": "samples", "regulariser": "samples", "kept": "steps", "margin": "steps"}
        steps.append({name: training.sums.mean(name, over) for name, over in per.items()})
    after = batch_margins(training.model, crops)
    about = {"versions": versions(), "device": training.device.type, "seconds": round(time.monotonic() - started)}
    values = {"recipe": recipe.to_dict(), "seed": 0, **about, "steps": steps, "before": before, "after": after}
    store("fine_tuning", arch, values)
    return values


def batch_margins(model: nn.Module, parts: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    return [round(norm, 5) for x, _ in parts for norm in in_units_of(STD, deepfool(model, x).delta).tolist()]


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__}
