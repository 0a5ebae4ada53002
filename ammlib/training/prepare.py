"""What a recipe asks for: data, model, regulariser, learning rate, and which parameters are trained."""

from collections.abc import Callable

import torch
from torch import nn

from ammlib.data.batches import half_of, noisy_labels, subset, validation_split
from ammlib.data.datasets import Dataset, load_data
from ammlib.data.registry import DATASETS
from ammlib.margin.amm import AMM
from ammlib.margin.baselines import Elsayed, Refined
from ammlib.margin.classifier import choose, random_state_kept
from ammlib.models import make_model
from ammlib.models.community import options_of
from ammlib.training.device import best_device
from ammlib.training.recipes import Recipe, stands_for

REGULARISERS: dict[str, Callable[..., AMM]] = {"amm": AMM, "elsayed": Elsayed, "refined": Refined}


def make_regulariser(recipe: Recipe) -> AMM | None:
    """The regulariser that a recipe asks for."""
    if recipe.regulariser is None:
        return None
    return choose("regulariser", recipe.regulariser["name"], REGULARISERS)(**recipe.arguments)


def prepare_data(recipe: Recipe, data: Dataset | None = None) -> Dataset:
    """The data set with the recipe's half of the test images, which is fixed; with its validation split, then its
    subset, then its label noise, all by `data_seed`."""
    data = load_data(recipe.dataset) if data is None else data
    x, y, x_test, y_test = data.x_train, data.y_train, data.x_test, data.y_test
    if recipe.half is not None:
        rows = half_of(len(y_test), recipe.half)
        x_test, y_test = x_test[rows], y_test[rows]
    if recipe.validation:
        kept, held_out = validation_split(len(y), recipe.data_seed)
        x, y, x_test, y_test = x[kept], y[kept], x[held_out], y[held_out]
    if recipe.train_size is not None:
        chosen = subset(len(y), recipe.train_size, recipe.data_seed)
        x, y = x[chosen], y[chosen]
    if recipe.noisy:
        y = noisy_labels(y, len(y) - recipe.noisy, data.num_classes, recipe.data_seed)
    return Dataset(data.name, x, y, x_test, y_test, data.num_classes)


def new_model(recipe: Recipe, seed: int, num_classes: int | None = None) -> nn.Module:
    """The freshly initialised model of a run; the global random state stays as it was."""
    with random_state_kept(best_device()):
        torch.manual_seed(seed)
        like = stands_for(recipe.dataset, recipe.family)
        options = {} if recipe.weights is None else options_of(like, recipe.arch)
        return make_model(like, recipe.arch, num_classes, **options)


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """Step decay: the initial rate times the multiplier of the last cut."""
    return recipe.lr * ([1.0] + [multiplier for cut, multiplier in recipe.decay if cut <= epoch])[-1]


def margin_units(recipe: Recipe) -> tuple[float, ...] | None:
    """The deviation of each channel by which margins are divided, where the paper reports them so."""
    return DATASETS[stands_for(recipe.dataset, recipe.family)].std


def trained_parameters(model: nn.Module, freeze_bn: bool) -> list[nn.Parameter]:
    """The parameters to train: frozen batch norm keeps its own."""
    frozen = {id(p) for module in batch_norms(model) for p in module.parameters()} if freeze_bn else set()
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) not in frozen)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def set_mode(model: nn.Module, freeze_bn: bool) -> None:
    """Train mode, in which frozen batch norm goes on using its stored statistics."""
    model.train()
    if freeze_bn:
        for module in batch_norms(model):
            module.eval()


def batch_norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
