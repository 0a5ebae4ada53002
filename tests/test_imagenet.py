"""Facts about runs on ImageNet, with folders of a few generated images."""

import pytest
import torch

from ammlib.data.datasets import load_data
from ammlib.data.registry import DATASETS
from ammlib.data.sources import DataError
from ammlib.models import make_model
from ammlib.report.notebook import stored_runs
from ammlib.training.evaluate import evaluate
from ammlib.training.execute import execute, run_or_load, starting_weights, trained_model
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe, reference_of
from ammlib.training.runs import load_run
from ammlib.training.studies import study
from ammlib.training.train import Training


def tiny_recipe(method):
    changes = {"batch": 4, "steps": 1, "lr": 1e-3} if method == "amm" else {}
    return make_recipe("tiny", "resnet18", method, "short", "imagenet", margin_size=2, **changes)


def test_the_reference_of_imagenet_is_evaluated_as_it_is(tiny_images, tiny_weights, monkeypatch):
    monkeypatch.setenv("AMMLIB_IMAGENET", str(tiny_images / "tiny"))
    recipe = make_recipe("imagenet", "resnet18", "reference", "short", train_size=6, margin_size=2)
    reference = run_or_load(recipe, 0, progress=False)
    model = make_model("imagenet", "resnet18", 3)
    model.load_state_dict(tiny_weights)
    data = load_data("tiny")
    assert reference.history == [] and reference.metrics["test_images"] == 3
    found = evaluate(model, data.x_test, data.y_test, progress=False, std=DATASETS["imagenet"].std)
    assert reference.metrics["error"] == found["error"] and reference.metrics["margin_samples"] == 2


def test_on_own_images_the_pretrained_weights_are_trained_on_and_amm_starts_from_there(tiny_images, tiny_weights):
    tuned = execute(tiny_recipe("amm"), 0, progress=False)
    reference = load_run(reference_of(tiny_recipe("amm")), 0)
    assert reference.recipe.start == "pretrained" and len(reference.history) == 1
    assert tuned.recipe.freeze_bn and len(tuned.history) == 1 and load_run(tiny_recipe("amm"), 0) is not None
    before, after = (trained_model(run.recipe, 0).state_dict() for run in (reference, tuned))
    moved = (after["1.conv1.weight"] - before["1.conv1.weight"]).norm()
    assert 0 < moved < 0.1 * before["1.conv1.weight"].norm()
    assert torch.equal(after["1.bn1.running_mean"], before["1.bn1.running_mean"])


def test_own_classes_get_a_head_of_their_own(tiny_images, tiny_weights):
    torch.save(make_model("imagenet", "resnet18", 5)[1].state_dict(), tiny_images / "imagenet_resnet18.pth")
    recipe = tiny_recipe("reference")
    first, again, other = (starting_weights(recipe, seed, 3) for seed in (0, 0, 1))
    assert first["1.fc.weight"].shape == (3, 512)
    for name in first:
        assert torch.equal(first[name], again[name])
        assert torch.equal(first[name], other[name]) == (name != "1.fc.weight")  # biases start at zero
    assert run_or_load(recipe, 0, progress=False).metrics["test_images"] == 3
    with pytest.raises(DataError, match="does not fit resnet18 with 3 classes: 2 tensors, such as fc.weight, fc.bias"):
        starting_weights(make_recipe("imagenet", "resnet18", "reference", "short"), 0, 3)


def test_a_training_on_files_resumes_within_an_epoch(tiny_images, tiny_weights, tmp_path):
    recipe = tiny_recipe("amm")
    data = prepare_data(recipe)
    whole, first = (Training(recipe, 0, data, tiny_weights, tmp_path / name) for name in ("whole.pt", "first.pt"))
    for batch in whole.batches.epoch(0):
        whole.take_step(*batch)
    first.take_step(*next(first.batches.epoch(0)))
    first.save()
    resumed = Training(recipe, 0, data, tiny_weights, tmp_path / "first.pt")
    for batch in resumed.batches.epoch(0, start=resumed.step):
        resumed.take_step(*batch)
    ends = whole.model.state_dict(), resumed.model.state_dict()
    assert resumed.step == 2 and all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_without_imagenet_the_error_comes_before_any_training(tiny_images):
    with pytest.raises(DataError, match=f"no folder {tiny_images}/imagenet/train"):
        stored_runs(study("table7", "full")[:2], train=True)
