"""Facts about training: a step is what the recipe says, and what a run records is what it did."""

import re
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from trainings import batch_norm_net, result, start, tiny

from ammlib import AMM
from ammlib.data.batches import subset
from ammlib.data.datasets import Dataset, load_data
from ammlib.models.weights import weights_digest
from ammlib.training import prepare
from ammlib.training import train as train_module
from ammlib.training.checkpoint import load_checkpoint
from ammlib.training.execute import run_or_load, starting_weights
from ammlib.training.prepare import learning_rate, new_model, prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import checkpoint_path
from ammlib.training.train import TrainingError, train

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("own_folders")


# ---- one step


@pytest.mark.parametrize("clip_grad", [0.1, 1e9])
@pytest.mark.parametrize("method", ["reference", "amm"])
def test_a_step_is_sgd_with_momentum_weight_decay_and_clipped_gradients(method, clip_grad):
    recipe = tiny(method, clip_grad=clip_grad, weight_decay=0.01, momentum=0.8, lr=0.05)
    training = start(recipe)
    model, amm = deepcopy(training.model), AMM("min", "exp", lam=8.0, c=2.0, d=1.0)
    velocity = [torch.zeros_like(w) for w in model.parameters()]
    for x, y in training.batches.epoch(0):
        training.take_step(x, y)
        loss = F.cross_entropy(model(x), y) + (amm(model, x, y) if method == "amm" else 0)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = sum(g.square().sum() for g in gradients).sqrt()
        with torch.no_grad():
            for w, v, g in zip(model.parameters(), velocity, gradients, strict=True):
                v.mul_(0.8).add_(g * min(1.0, clip_grad / norm) + 0.01 * w)
                w.sub_(0.05 * v)
        ours = [w.detach() for w in training.model.parameters()]
        torch.testing.assert_close(ours, [w.detach() for w in model.parameters()], rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip_grad", [1e-3, 0.1])
def test_the_gradient_is_no_longer_than_clip_grad(clip_grad):
    training = start(tiny(clip_grad=clip_grad))
    for x, y in training.batches.epoch(0):
        training.take_step(x, y)
        norm = torch.cat([w.grad.flatten() for w in training.parameters]).norm()
        assert 0.99 * clip_grad < norm <= clip_grad * (1 + 1e-6)


def test_the_loss_can_be_the_regulariser_alone():
    training = start(tiny(loss="none"))
    x, y = next(training.batches.epoch(0))
    term = AMM("min", "exp", lam=8.0, c=2.0, d=1.0)(training.model, x, y)
    expected = torch.autograd.grad(term, training.parameters)
    training.take_step(x, y)
    scale = training.parameters[0].grad.norm() / expected[0].norm()  # of clipping
    for w, g in zip(training.parameters, expected, strict=True):
        torch.testing.assert_close(w.grad, scale * g)


def test_the_learning_rate_is_cut_exactly_at_the_cuts():
    recipe = tiny(epochs=6, lr=0.1, decay=[[2, 0.5], [3, 0.1], [5, 0.01]])
    rates = [0.1, 0.1, 0.05, 0.01, 0.01, 0.001]
    assert [learning_rate(recipe, epoch) for epoch in range(6)] == pytest.approx(rates, rel=1e-15)
    training, used = start(recipe), []
    training.optimizer.register_step_pre_hook(lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"]))
    training.run(progress=False)
    assert used == [rate for epoch in range(6) for rate in 3 * [learning_rate(recipe, epoch)]]
    assert [row["lr"] for row in training.history] == [learning_rate(recipe, epoch) for epoch in range(6)]


# ---- where a run starts


def test_initial_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = weights_digest(new_model(tiny(), seed=3).state_dict())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert weights_digest(new_model(tiny("reference", lr=1.0), seed=3).state_dict()) == first
    assert weights_digest(new_model(tiny(), seed=4).state_dict()) != first


def test_a_run_neither_depends_on_the_global_random_state_nor_changes_it():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = result(train(tiny(), 0, progress=False))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert result(train(tiny(), 0, progress=False)) == first
    assert result(train(tiny(), 1, progress=False))[0] != first[0]


def test_given_weights_are_where_training_starts():
    weights = new_model(tiny(), seed=7).state_dict()
    training = train(tiny(epochs=0), 0, weights=weights, progress=False)
    assert weights_digest(training.model.state_dict()) == weights_digest(weights)
    assert not training.model.training


def test_subset_and_noise_have_exactly_the_recipes_counts():
    digits = load_data("digits")
    x, y = digits.x_train, digits.y_train
    data = prepare_data(tiny(train_size=500, noisy=300), Dataset("digits", x, y, x, y, num_classes=2**40))
    chosen = subset(len(x), 500, seed=0)
    assert torch.equal(data.x_train, x[chosen]) and torch.equal(data.x_test, x)
    assert (data.y_train != y[chosen]).sum() == 300  # none is right by chance among 2^40 classes
    assert len(prepare_data(tiny(train_size=None)).y_train) == len(y) == 1437


def test_a_half_of_the_test_images_is_evaluated_and_no_training_image_less():
    whole = load_data("digits")
    halves = [prepare_data(tiny(train_size=None, half=half)) for half in ("search", "report")]
    assert all(torch.equal(half.x_train, whole.x_train) for half in halves)
    images = torch.cat([half.x_test for half in halves])
    assert [len(half.y_test) for half in halves] == [180, 180]
    assert {x.numpy().tobytes() for x in images} == {x.numpy().tobytes() for x in whole.x_test}


def test_the_net_of_published_weights_has_their_shortcuts():
    recipes = [make_recipe(name, "resnet20", "control", "tuned") for name in ("cifar10", "cifar100", "svhn")]
    sizes = [sum(p.numel() for p in new_model(recipe, 0).parameters()) for recipe in recipes]
    assert sizes == [269_722, 278_324, 269_722]
    with pytest.raises(
        ValueError, match="cifar100/resnet20/amm starts from published weights at scale tuned only, not"
    ):
        starting_weights(make_recipe("cifar100", "resnet20", "amm", "short", start="pretrained"), 0, 100)


def test_validation_trains_on_all_but_5000_images_and_evaluates_on_these(monkeypatch):
    x = torch.randint(256, (5300, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, :2] = torch.stack([torch.arange(5300) // 256, torch.arange(5300) % 256], 1)  # each tells its number
    fake = Dataset("digits", x, torch.arange(5300) % 10, x[:7], torch.arange(7), 10)
    monkeypatch.setattr(prepare, "load_data", lambda name: fake)
    data = prepare_data(tiny(train_size=None, validation=True))
    numbers = [256 * x[:, 0, 0, 0].int() + x[:, 0, 0, 1] for x in (data.x_train, data.x_test)]
    assert [len(n) for n in numbers] == [300, 5000]
    assert torch.equal(torch.cat(numbers).sort().values, torch.arange(5300))
    assert torch.equal(data.y_train, numbers[0] % 10) and torch.equal(data.y_test, numbers[1] % 10)
    assert len(prepare_data(tiny(train_size=120, validation=True)).y_train) == 120
    with pytest.raises(ValueError, match="cannot hold out 5000 of 1437"):
        prepare_data(tiny(validation=True), load_data("digits"))


# ---- what a run records


@pytest.mark.parametrize("method", ["reference", "amm", "elsayed"])
def test_history_has_a_row_for_each_epoch(method):
    training = train(tiny(method), 0, progress=False)
    assert [row["epoch"] for row in training.history] == [1, 2]
    for row in training.history:
        assert {name for name, value in row.items() if value is None} == (
            {"regulariser", "kept", "kept_margin"} if method == "reference" else set()
        )
        assert row["loss"] > 0 and row["test_margin"] > 0
        assert 0 <= row["train_error"] <= 100 and 0 <= row["test_error"] <= 100
    assert training.history[1]["loss"] < training.history[0]["loss"]


def test_the_history_of_a_long_training_has_a_row_for_every_few_epochs(monkeypatch):
    recipe = tiny(epochs=5)
    every = train(recipe, seed=0, progress=False)
    monkeypatch.setattr(train_module, "ENTRIES", 2)
    few = train(recipe, seed=0, progress=False)
    assert [row["epoch"] for row in few.history] == [2, 4, 5]
    assert few.history[-1] == every.history[-1] and weights_digest(few.model.state_dict()) == weights_digest(
        every.model.state_dict()
    )
    first, second = every.history[:2]
    for name in ("loss", "train_error", "regulariser", "kept"):
        assert few.history[0][name] == pytest.approx((first[name] + second[name]) / 2)


def test_training_error_and_loss_are_means_over_the_epochs_samples():
    recipe = tiny("reference", lr=0.0, batch=25)  # the last batch is smaller
    data = prepare_data(recipe)
    training = train(recipe, 0, data=data, progress=False)
    logits = new_model(recipe, 0)(data.x_train.float() / 255).detach()
    row = training.history[0]
    assert row["loss"] == pytest.approx(float(F.cross_entropy(logits, data.y_train)), rel=1e-5)
    assert row["train_error"] == pytest.approx(100 * float((logits.argmax(1) != data.y_train).double().mean()))


def test_the_progress_bar_shows_epoch_error_regulariser_and_kept_samples(capsys):
    train(tiny(), 0)
    shown = capsys.readouterr().err
    assert re.search(r"digits/mlp/amm: 100%.* 6/6 .*epoch=2/2, error=[\d.]+%, reg=[\d.]+, kept=[\d.]+", shown)


# ---- batch norm


@pytest.mark.parametrize("method", ["reference", "amm"])
@pytest.mark.parametrize("freeze_bn", [True, False])
def test_frozen_batch_norm_keeps_its_weights_and_statistics(method, freeze_bn, monkeypatch):
    monkeypatch.setattr(prepare, "make_model", batch_norm_net)
    training = start(tiny(method, freeze_bn=freeze_bn))
    before = deepcopy(training.model.state_dict())
    training.run(progress=False)
    after = training.model.state_dict()
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert kept == ({name for name in before if name.startswith("2.")} if freeze_bn else set())


# ---- when a loss is not finite


@pytest.mark.parametrize("method", ["reference", "amm", "elsayed"])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(method):
    recipe = tiny(method, epochs=3, decay=[[1, 1e30]])  # the second epoch leaps to where all overflows
    path = checkpoint_path(recipe, 0)
    with pytest.raises(TrainingError, match=rf"digits/mlp/{method}, seed 0: .* epoch 2, step 2.* kept in {path}"):
        run_or_load(recipe, 0, progress=False)
    state = load_checkpoint(path, start(recipe).identity)
    assert (state["epoch"], state["step"], len(state["history"])) == (1, 0, 1)
    assert result(train(recipe.with_(epochs=1, decay=[]), 0, progress=False))[0] == weights_digest(state["model"])


@pytest.mark.parametrize("method", ["reference", "amm"])
def test_an_overflow_in_the_last_step_of_an_epoch_is_found_in_its_evaluation(method, tmp_path):
    with pytest.raises(TrainingError, match="epoch 1, step 1"):
        train(tiny(method, batch=60, lr=1e30), 0, checkpoint=tmp_path / "c.pt", progress=False)
    assert not list(tmp_path.iterdir())


def test_without_a_checkpoint_the_error_does_not_claim_one(tmp_path):
    with pytest.raises(TrainingError, match="epoch 1, step 2") as caught:
        train(tiny("reference", lr=1e30), 0, checkpoint=tmp_path / "c.pt", progress=False)
    assert "kept" not in str(caught.value) and not (tmp_path / "c.pt").exists()
