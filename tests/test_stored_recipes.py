"""Facts about recipes in files: they survive JSON, and their digest names the run, whatever source is written there."""

import json
from dataclasses import fields
from pathlib import Path

from trainings import every_recipe

from ammlib.training.recipes import DEFAULTS, Recipe, make_recipe


def test_every_recipe_survives_json_and_has_its_own_digest():
    recipes = list(every_recipe())
    for recipe in recipes:
        stored = json.loads(json.dumps(recipe.to_dict()))
        assert stored == recipe.to_dict()
        assert Recipe.from_dict(stored) == recipe
        assert Recipe.from_dict(stored).source == recipe.source
    assert len({r.digest for r in recipes}) == len(set(recipes)) == len(recipes)


def test_digest_is_stable():
    assert make_recipe("mnist", "mlp", "amm", "full").digest == "f4d5b283c5"  # names stored runs: never let it change


CHANGES = {
    "dataset": "own",
    "family": "cifar",
    "arch": "lenet",
    "method": "avg_exp",
    "scale": "short",
    "epochs": 99,
    "batch": 50,
    "lr": 0.1,
    "decay": [[50, 0.1]],
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip_grad": 1.0,
    "start": "reference",
    "freeze_bn": True,
    "crop": "pad4",
    "flip": True,
    "train_size": 5000,
    "noisy": 1,
    "data_seed": 1,
    "validation": True,
    "margin_size": 100,
    "loss": "none",
    "regulariser": {"name": "elsayed", "lam": 1.0, "gamma": 1.0},
    "weights": "akamaster",
    "half": "search",
}


def test_digest_changes_with_all_but_the_source():
    recipe = make_recipe("mnist", "mlp", "amm", "full")
    assert [*CHANGES, "source"] == [f.name for f in fields(Recipe)]
    for name, value in CHANGES.items():
        changed = Recipe.from_dict({**recipe.to_dict(), name: value})
        assert changed.digest != recipe.digest, name
        assert changed != recipe, name
    reworded = Recipe.from_dict({**recipe.to_dict(), "source": "elsewhere"})
    assert (reworded.digest, reworded) == (recipe.digest, recipe)


def test_what_came_later_leaves_stored_recipes_as_they_are():
    assert DEFAULTS == {"weights": None, "half": None}
    assert not DEFAULTS.keys() & make_recipe("mnist", "mlp", "amm", "full").to_dict().keys()
    assert make_recipe("cifar10", "resnet20", "amm", "tuned").to_dict().items() >= {("half", "report")}
    paths = list((Path(__file__).parents[1] / "results" / "runs").rglob("*.json"))
    assert len(paths) > 200
    for path in paths:
        stored = json.loads(path.read_text("utf-8"))["recipe"]
        recipe = Recipe.from_dict(stored)
        assert recipe.to_dict() == stored and f"-{recipe.digest}-" in path.name


def test_numbers_have_one_form():
    recipe = make_recipe("mnist", "mlp", "amm", "full")
    assert recipe.with_(lr=1).digest == recipe.with_(lr=1.0).digest
    assert recipe.with_(lam=1).digest == recipe.with_(lam=1.0).digest
    assert recipe.with_(decay=[[50, 0.1], [80, 0.01]]) == recipe
    assert recipe.with_(train_size=60_000) == recipe
