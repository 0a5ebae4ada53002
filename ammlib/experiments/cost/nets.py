"""The nets that are measured, each in the middle of its training, and the clock that measures them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from ammlib.data.datasets import data_root, load_data
from ammlib.data.folders import at_once
from ammlib.margin.amm import AMM
from ammlib.models import make_model
from ammlib.report.measurements import VARIANTS
from ammlib.training.device import best_device, placed
from ammlib.training.execute import starting_weights
from ammlib.training.prepare import prepare_data, set_mode, trained_parameters
from ammlib.training.recipes import make_recipe


@dataclass(frozen=True)
class Case:
    """A net, how long it trains before it is measured, and how thoroughly it is; large nets get less of each."""

    dataset: str
    arch: str
    batch: int
    warm_up: int  # plain steps, then a tenth as many with MIN + EXP
    repeats: int
    reference: str | None = None  # no training: from its reference at this scale, on that one's images, if at hand


CASES = {
    "mlp": Case("mnist", "mlp", 100, 600, 8),
    "lenet": Case("mnist", "lenet", 100, 600, 4),
    "liunet": Case("mnist", "liunet", 50, 100, 1),
    "lenet_cifar": Case("cifar10", "lenet", 100, 400, 3),
    "resnet20": Case("cifar10", "resnet20", 100, 100, 3, reference="short"),
    "resnet20_converged": Case("cifar10", "resnet20", 128, 100, 3, reference="tuned"),
    "densenet40": Case("cifar10", "densenet40", 50, 30, 1),
}


class Clock:
    """Marks moments: by events on a GPU, which does not wait for Python, and by CPU time otherwise."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self.cuda:
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        """Milliseconds."""
        if not self.cuda:
            return 1e3 * (end - start)
        end.synchronize()
        return start.elapsed_time(end)

    def milliseconds(self, action: Callable[[], object]) -> float:
        start = self.mark()
        action()
        return self.between(start, self.mark())


class Net:
    """A model with its optimiser that can take a step with or without a regulariser."""

    def __init__(self, case: Case, num_classes: int | None = None, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.case, self.device = case, best_device()
        self.recipe = make_recipe(case.dataset, case.arch, "amm")
        self.model = placed(make_model(case.dataset, case.arch, num_classes), self.device)
        self.parameters = list(self.model.parameters())
        recipe = self.recipe
        self.optimizer = torch.optim.SGD(self.parameters, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)

    def regulariser(self, variant: str, **changes: Any) -> AMM:
        return AMM(**self.recipe.with_(**VARIANTS[variant], **changes).arguments)

    def step(self, x: Tensor, y: Tensor, amm: AMM | None = None) -> None:
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        if amm is not None:
            loss = loss + amm(self.model, x, y, logits=logits)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_grad)
        self.optimizer.step()

    def freeze(self) -> None:
        """Freeze the batch norm of nets that are fine-tuned so."""
        self.parameters = trained_parameters(self.model, self.recipe.freeze_bn)
        set_mode(self.model, self.recipe.freeze_bn)

    def hold(self) -> None:
        """From now on steps cost the same and change nothing: whatever is measured in turn meets the same weights."""
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0


class Images:
    """Random batches of a data set if it is at hand, otherwise of scikit-learn's digits, enlarged to its size."""

    def __init__(self, dataset: str, seed: int = 0) -> None:
        if (data_root() / f"{dataset}.npz").exists():
            self.name, data, self.size = dataset, load_data(dataset), None
        else:
            self.name, data = "digits, enlarged", load_data("digits" if dataset == "mnist" else "digits32")
            self.size = 28 if dataset == "mnist" else 32
        self.data, self.device = data, best_device()
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        x, y = self.data.x_train, self.data.y_train
        rows = torch.randint(len(y), (size,), generator=self.generator)
        return self.prepared(at_once(x[rows])), y[rows].to(self.device)

    def test(self, count: int) -> Tensor:
        return self.prepared(at_once(self.data.x_test[:count]))

    def prepared(self, x: Tensor) -> Tensor:
        x = x.to(self.device)
        return x if self.size is None else F.interpolate(x, size=self.size, mode="bilinear")


def partly_trained(case: Case) -> tuple[Net, Images]:
    """The net after some training, so that many samples are classified correctly, as during most of a run."""
    net, images = Net(case), Images(case.dataset)
    if case.reference and images.name == case.dataset:
        recipe = make_recipe(case.dataset, case.arch, "amm", case.reference, start="reference")
        weights = starting_weights(recipe, 0, images.data.num_classes)
        assert weights is not None  # it does not start from scratch
        net.model.load_state_dict(weights)
        images.data = prepare_data(recipe, images.data)
    else:
        warm_up(net, images)
    net.freeze()
    net.hold()
    return net, images


def warm_up(net: Net, images: Images) -> None:
    """The steps of a case: plain ones, then a few with MIN + EXP."""
    case = net.case
    amm = net.regulariser("MIN + EXP, screened")
    for i in tqdm(range(case.warm_up + case.warm_up // 10), f"partly training {case.arch}", leave=False):
        if i == case.warm_up:
            net.freeze()
        net.step(*images.batch(case.batch), None if i < case.warm_up else amm)
