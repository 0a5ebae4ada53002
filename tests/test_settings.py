"""Facts about settings: one that is changed changes nothing else, and what is impossible or does nothing is refused."""

from dataclasses import fields

import pytest

from ammlib.training.recipes import Recipe, make_recipe

pytestmark = pytest.mark.usefixtures("own_folders")


# ---- changed


def test_with_changes_what_it_names():
    recipe = make_recipe("mnist", "mlp", "amm", "full")
    changed = recipe.with_(lr=0.1, lam=4.0, screen=None)
    differing = {f.name for f in fields(Recipe) if getattr(changed, f.name) != getattr(recipe, f.name)}
    assert differing == {"lr", "regulariser", "source"}
    assert changed.regulariser == recipe.regulariser | {"lam": 4.0, "screen": None}
    assert changed.source == recipe.source + "; changed: lr, lam, screen"
    assert changed.with_(screen="auto").regulariser["screen"] == "auto"
    assert recipe == make_recipe("mnist", "mlp", "amm", "full")
    assert make_recipe("mnist", "mlp", "amm", "full", lr=0.1, lam=4.0, screen=None) == changed


# ---- unknown and wrong


@pytest.mark.parametrize("name", ["epoch", "gamma", "dataset", "method", "scale", "weights", "name"])
def test_with_rejects_unknown_names(name):
    recipe = make_recipe("mnist", "mlp", "amm")
    with pytest.raises(ValueError, match=rf"unknown setting '{name}'; choose from epochs, batch, lr.*, shrinkage, lam"):
        recipe.with_(**{name: 1})


def test_make_recipe_rejects_unknown_settings():
    with pytest.raises(ValueError, match="unknown setting 'lam'; choose from epochs, batch, lr"):
        make_recipe("mnist", "mlp", "reference", lam=1.0)


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("epochs", "3", "epochs must be int, got '3'"),
        ("epochs", 3.0, "epochs must be int, got 3.0"),
        ("epochs", True, "epochs must be int, got True"),
        ("epochs", -1, "epochs must be at least 0, got -1"),
        ("batch", 0, "batch must be at least 1, got 0"),
        ("lr", "high", "lr must be float, got 'high'"),
        ("lr", float("nan"), "lr must be finite, got nan"),
        ("flip", 1, "flip must be bool, got 1"),
        ("train_size", 0.5, r"train_size must be int \| None, got 0.5"),
        ("crop", "pad8", "crop must be one of None, 'resize36', 'pad4', got 'pad8'"),
        ("start", "zero", "start must be one of 'scratch', 'reference', 'pretrained', got 'zero'"),
        ("decay", [50, 80], "decay must be pairs"),
        ("decay", [[50.5, 0.1]], "decay must be pairs"),
        ("decay", [[80, 0.1], [50, 0.01]], "cuts must lie in order within the 100 epochs"),
        ("decay", [[100, 0.1]], "cuts must lie in order within the 100 epochs"),
        ("lam", "32", "lam must be float, got '32'"),
        ("steps", 1.5, "steps must be int, got 1.5"),
        ("high_order", 0, "high_order must be bool, got 0"),
        ("regulariser", {"name": "l2"}, "unknown method 'l2'; choose from reference, control, amm"),
    ],
)
def test_with_rejects_wrong_values(name, value, reason):
    with pytest.raises(ValueError, match=reason):
        make_recipe("mnist", "mlp", "amm", "full").with_(**{name: value})


def test_impossible_combinations():
    with pytest.raises(ValueError, match="noisy is 6000, more than the 5000 training images"):
        make_recipe("mnist", "mlp", "amm", train_size=5000, noisy=6000)
    with pytest.raises(ValueError, match="half is 'search' of the test images, but validation looks at none"):
        make_recipe("cifar10", "lenet", "amm", half="search", validation=True)
    with pytest.raises(ValueError, match="toy/linear/reference has neither a loss nor a regulariser"):
        make_recipe("toy", "linear", "reference")
    with pytest.raises(ValueError, match="unknown or missing: epochs, extra"):
        values = make_recipe("mnist", "mlp", "amm").to_dict()
        Recipe.from_dict({"extra": 1, **{name: value for name, value in values.items() if name != "epochs"}})


# ---- with which a training would do nothing


@pytest.mark.parametrize("setting", ["lam=50", "lam=1000", "overshoot=1e30", "clip=1e-300", "c=1e300", "d=1e-300"])
def test_settings_that_do_nothing_are_refused(setting, refused):
    refused(f"train --dataset digits --set epochs=1 {setting}", setting.partition("=")[0])


@pytest.mark.parametrize("setting", ["clip_grad=0", "momentum=1", "lr=1e300", "weight_decay=1e300", "decay=[[0,-1]]"])
def test_steps_that_lead_nowhere_are_refused(setting, refused):
    refused(f"train --dataset digits --set {setting}", "rate" if "decay=[" in setting else setting.partition("=")[0])


@pytest.mark.parametrize("value", ['{"name":"amm"}', '{"name":"amm","lam":"x"}', '{"lam":1}', "[1]", "amm"])
def test_a_regulariser_is_not_replaced_as_a_whole(value, refused):
    refused(["train", "--dataset", "digits", "--set", f"regulariser={value}"], "regulariser")


@pytest.mark.parametrize("seed", [2**64, 2**70])
def test_a_seed_has_64_bits(seed, refused):
    refused(f"train --dataset digits --seed {seed} --set epochs=1", seed)
