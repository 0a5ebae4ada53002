"""What a recipe asks for: data, method, model, learning rate, and which parameters are trained."""

import torch
from torch import Tensor, nn

from ammlib.data.batches import half_of, noisy_labels, subset, validation_split
from ammlib.data.datasets import Dataset, load_data
from ammlib.data.registry import DATASETS
from ammlib.margin.classifier import random_state_kept
from ammlib.methods.losses import LOSSES
from ammlib.methods.method import Method
from ammlib.methods.registry import METHODS
from ammlib.models import make_model
from ammlib.models.community import options_of
from ammlib.training.device import best_device
from ammlib.training.recipes import Recipe, stands_for


def make_method(recipe: Recipe) -> Method:
    """The method of a recipe, with its loss; an error if the two do not go together."""
    name = "reference" if recipe.regulariser is None else recipe.regulariser["name"]
    method = METHODS[name].make(**recipe.arguments)
    if recipe.loss != "cross_entropy" and type(method).loss is not Method.loss:
        raise ValueError(f"{name} has a loss of its own, which takes no other: loss is {recipe.loss!r}")
    if recipe.loss == "none" and type(method).term is Method.term:
        raise ValueError(f"{name} adds no term to the loss: with loss 'none' there is nothing to train")
    method.criterion = LOSSES[recipe.loss]
    return method


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


def new_model(
    recipe: Recipe, seed: int, num_classes: int | None = None, weights: dict[str, Tensor] | None = None
) -> nn.Module:
    """The model of a run as its method has it, freshly initialised or from the `weights` of a plain one.

    The global random state stays as it was.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed lies in 0 ... 2^64 - 1, got {seed}")
    with random_state_kept(best_device()):
        torch.manual_seed(seed)
        like = stands_for(recipe.dataset, recipe.family)
        options = {} if recipe.weights is None else options_of(like, recipe.arch)
        model = make_model(like, recipe.arch, num_classes, **options)
        if weights is not None:
            model.load_state_dict(weights)
        return make_method(recipe).adapt(model)


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
