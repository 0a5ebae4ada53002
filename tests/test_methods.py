"""Facts about the interface of methods: one class and one row make a new one."""

import pytest
import torch
from trainings import Keeping, result, start, tiny

from ammlib.data.batches import Batches
from ammlib.methods.method import Batch, Method
from ammlib.methods.registry import METHODS, Row
from ammlib.report.style import style_of
from ammlib.training.execute import run_or_load, trained_model
from ammlib.training.prepare import make_method, prepare_data
from ammlib.training.recipes import label
from ammlib.training.train import Training, train

pytestmark = pytest.mark.usefixtures("own_folders")


class Toy(Method):
    """Uses all that a method may: another model, noise, labels, a term, its own groups, and a state."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def adapt(self, model):
        return torch.nn.Sequential(model, torch.nn.Dropout(0.2))

    def begin(self, model, task):
        assert task == (60, 10, (1, 8, 8), 6)
        self.register_buffer("visits", torch.zeros(task.samples))

    def groups(self, model):
        return [{**group, "weight_decay": 0.0} for group in super().groups(model)]

    def disturb(self, batch):
        return batch._replace(x=batch.x + 0.01 * torch.randn_like(batch.x), y=(batch.y + 1) % 10)

    def term(self, model, batch, logits):
        self.visits[batch.rows] += 1 + batch.step
        return self.weight * logits.square().mean()

    def after_step(self, model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-1, 1)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", Row(Toy, "a toy", "#123456", dict(weight=0.5), "chosen here"))
    return tiny("toy", weight=0.25)


def test_a_new_method_is_one_class_and_one_row(toy):
    assert toy.arguments == {"weight": 0.25} and "toy: chosen here" in toy.source
    assert (label("toy"), style_of("toy")["color"]) == ("a toy", "#123456")
    run = run_or_load(toy, 0, progress=False)
    assert run.recipe.key == "digits/mlp/toy" and run.history[-1]["regulariser"] > 0 and run.history[-1]["kept"] is None
    assert not trained_model(toy, 0)[1].training


def test_a_method_does_what_it_says(toy):
    training = train(toy, 0, progress=False)
    first, second = (training.batches.indices(epoch) for epoch in (0, 1))
    visits = torch.zeros(60)
    for step, index in enumerate([*first, *second]):
        visits[index] += 1 + step
    assert torch.equal(training.method.visits, visits)
    assert [group["weight_decay"] for group in training.optimizer.param_groups] == [0.0]
    assert max(parameter.abs().max() for parameter in training.model.parameters()) <= 1


def test_noise_and_state_survive_a_stop(toy, tmp_path):
    data = prepare_data(toy)
    whole = train(toy, 0, data=data, progress=False)
    Keeping(toy, 0, data, checkpoint=tmp_path / "last.pt").run(progress=False)
    torch.manual_seed(5)
    resumed = Training(toy, 0, data, checkpoint=tmp_path / "middle.pt")
    assert (resumed.epoch, resumed.step) == (1, 1) and resumed.method.visits.sum() > 0
    resumed.run(progress=False)
    assert result(resumed) == result(whole) and torch.equal(resumed.method.visits, whole.method.visits)


def test_batches_say_which_samples_they_hold():
    x = torch.arange(50, dtype=torch.uint8)[:, None, None, None].expand(50, 1, 2, 2).contiguous()
    batches = Batches(x, torch.arange(50), 20, seed=3)
    for start_at in (0, 2):
        parts = list(zip(batches.epoch(1, start_at), batches.indices(1, start_at), strict=True))
        assert len(parts) == 3 - start_at and all(torch.equal(y, index) for (_, y), index in parts)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_an_epoch_from_its_recipe(method):
    training = start(tiny(method, epochs=1))
    before = [parameter.clone() for parameter in training.parameters]
    training.run(progress=False)
    assert isinstance(training.method, Method) and len(training.history) == 1
    pairs = zip(training.parameters, before, strict=True)
    assert all(now.isfinite().all() and not torch.equal(now, then) for now, then in pairs)


def test_a_loss_that_does_not_fit_is_refused(monkeypatch):
    class Own(Method):
        def loss(self, model, batch: Batch):
            return model(batch.x).sum(), model(batch.x)

    monkeypatch.setitem(METHODS, "own", Row(Own, "own", "#123456", dict(name="own"), "chosen here"))
    with pytest.raises(ValueError, match="own has a loss of its own, which takes no other: loss is 'none'"):
        make_method(tiny("own", loss="none"))
    monkeypatch.setitem(METHODS, "own", Row(Method, "own", "#123456", dict(name="own"), "chosen here"))
    with pytest.raises(ValueError, match="own adds no term to the loss: with loss 'none' there is nothing to train"):
        make_method(tiny("own", loss="none"))
