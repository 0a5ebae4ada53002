"""Small trainings for the tests."""

from torch import nn

from ammlib.models.weights import weights_digest
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.train import Training


def tiny(method="amm", **changes):
    """A recipe of two epochs of three steps."""
    return make_recipe("digits", "mlp", method, **{"epochs": 2, "train_size": 60, "batch": 20, **changes})


def start(recipe, seed=0, **options):
    return Training(recipe, seed, prepare_data(recipe), **options)


def batch_norm_net(*_, **__):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))


def result(training):
    return weights_digest(training.model.state_dict()), training.history


class Keeping(Training):
    """Keeps the checkpoint of a step in the middle."""

    def take_step(self, *batch):
        super().take_step(*batch)
        if (self.epoch, self.step) == (1, 1):
            self.save()
            self.checkpoint.rename(self.checkpoint.with_name("middle.pt"))
