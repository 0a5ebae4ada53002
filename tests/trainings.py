"""Small trainings for the tests, their recipes and nets, and a fault."""

from torch import nn

from ammlib.models.weights import weights_digest
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import METHODS, SCHEDULES, TABLES, make_recipe
from ammlib.training.train import Training


def tiny(method="amm", **changes):
    """A recipe of two epochs of three steps."""
    return make_recipe("digits", "mlp", method, **{"epochs": 2, "train_size": 60, "batch": 20, **changes})


def every_recipe():
    """All that can be asked for: the toy has no loss, hence neither reference nor control."""
    for dataset, archs in SCHEDULES.items():
        for arch in archs:
            tuned = ["tuned"] * (arch in TABLES["tuned"].get(dataset, {}).get("archs", {}))
            for method in METHODS:
                if dataset != "toy" or method not in ("reference", "control"):
                    yield from (make_recipe(dataset, arch, method, scale) for scale in ("full", "short", *tuned))


def start(recipe, seed=0, **options):
    return Training(recipe, seed, prepare_data(recipe), **options)


def batch_norm_net(*_, **__):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 15), nn.ReLU(), nn.Linear(15, 10))


def lenet():
    convolutions = [nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 10))


NETS = {"mlp": mlp, "lenet": lenet}


def result(training):
    return weights_digest(training.model.state_dict()), training.history


def flip(path, rng):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


class Keeping(Training):
    """Keeps the checkpoint of a step in the middle."""

    def take_step(self, *batch):
        super().take_step(*batch)
        if (self.epoch, self.step) == (1, 1):
            self.save()
            self.checkpoint.rename(self.checkpoint.with_name("middle.pt"))
