"""Facts about the recipes: they are the paper's rows, they survive JSON, and a wrong name says which are right."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from ammlib.data.batches import CROPS
from ammlib.margin.amm import AMM
from ammlib.margin.baselines import Elsayed, Refined
from ammlib.models.community import COMMUNITY
from ammlib.report.frame import extent
from ammlib.training.recipes import (
    BY_DATASET,
    DEFAULTS,
    METHODS,
    SCHEDULES,
    TABLES,
    VALUES,
    Recipe,
    make_recipe,
    reference_of,
    resolve_scale,
    scale_cuts,
)
from ammlib.training.studies import study

AT_50_80 = ((50, 0.1), (80, 0.01))
AT_100_140 = ((100, 0.1), (140, 0.01))
AT_250_350 = ((250, 0.1), (350, 0.01))
TABLE_2 = [  # of the appendix: dataset, arch, batch, epochs, initial lr, decay, scratch
    ("mnist", "mlp", 100, 100, 5e-3, AT_50_80, "yes"),
    ("mnist", "lenet", 100, 100, 5e-3, AT_50_80, "yes"),
    ("mnist", "liunet", 100, 100, 5e-3, AT_50_80, "no"),
    ("cifar10", "lenet", 100, 160, 5e-3, AT_100_140, "yes"),
    ("cifar10", "nin", 100, 400, 5e-3, AT_250_350, "no"),
    ("cifar10", "liunet", 100, 400, 5e-3, AT_250_350, "no"),
    ("cifar10", "resnet20", 128, 400, 1e-2, AT_250_350, "no"),
    ("cifar10", "resnet56", 128, 400, 1e-2, AT_250_350, "no"),
    ("cifar10", "densenet40", 128, 400, 1e-2, AT_250_350, "no"),
    ("cifar100", "lenet", 100, 160, 5e-3, AT_100_140, "yes"),
    ("cifar100", "nin", 100, 400, 5e-3, AT_250_350, "no"),
    ("cifar100", "liunet", 100, 400, 5e-3, AT_250_350, "no"),
    ("cifar100", "resnet20", 128, 400, 1e-2, AT_250_350, "no"),
    ("cifar100", "resnet56", 128, 400, 1e-2, AT_250_350, "no"),
    ("cifar100", "densenet40", 128, 400, 1e-2, AT_250_350, "no"),
    ("svhn", "lenet", 100, 100, 5e-3, AT_50_80, "yes"),
    ("svhn", "nin", 100, 100, 5e-3, AT_50_80, "no"),
    ("svhn", "liunet", 100, 100, 5e-3, AT_50_80, "no"),
    ("svhn", "resnet20", 128, 100, 5e-3, AT_50_80, "no"),
    ("svhn", "resnet56", 128, 100, 5e-3, AT_50_80, "no"),
    ("svhn", "densenet40", 128, 100, 5e-3, AT_50_80, "no"),
    ("imagenet", "resnet18", 32, 10, 1e-2, ((5, 0.1), (8, 0.01)), "no"),
    ("imagenet", "resnet50", 32, 10, 1e-2, ((5, 0.1), (8, 0.01)), "no"),
    ("imagenet", "senet50", 32, 20, 1e-2, ((10, 0.1), (15, 0.01)), "no"),
]
TABLE_1 = [  # of the appendix: method, aggregation, shrinkage, λ, c, d
    ("avg_lin", "avg", "lin", 1, 4, 4),
    ("avg_inv", "avg", "inv", 32, 4, 2),
    ("avg_exp", "avg", "exp", 32, 2, 2),
    ("min_lin", "min", "lin", 1, 0.5, 4),
    ("min_inv", "min", "inv", 32, 1, 0.5),
    ("min_exp", "min", "exp", 32, 2, 1),
]


def every_recipe():
    """All that can be asked for: the toy has no loss, hence neither reference nor control."""
    for dataset, archs in SCHEDULES.items():
        for arch in archs:
            tuned = ["tuned"] * (arch in TABLES["tuned"].get(dataset, {}).get("archs", {}))
            for method in METHODS:
                if dataset != "toy" or method not in ("reference", "control"):
                    yield from (make_recipe(dataset, arch, method, scale) for scale in ("full", "short", *tuned))


@pytest.mark.parametrize("dataset, arch, batch, epochs, lr, decay, scratch", TABLE_2)
def test_schedule_is_the_papers(dataset, arch, batch, epochs, lr, decay, scratch):
    recipe = make_recipe(dataset, arch, "amm", "full")
    assert (recipe.batch, recipe.epochs, recipe.lr, recipe.decay) == (batch, epochs, lr, decay)
    assert recipe.start == {"yes": "scratch", "no": "reference"}[scratch]
    assert (recipe.momentum, recipe.weight_decay, recipe.clip_grad) == (0.9, 1e-4, 10.0)
    assert (recipe.train_size, recipe.margin_size, recipe.noisy, recipe.validation) == (None, None, 0, False)
    assert "schedule: appendix Table 2" in recipe.source


def test_no_other_schedule_claims_to_be_the_papers():
    claimed = [
        (d, a) for d, rows in SCHEDULES.items() for a, row in rows.items() if row["source"] == "appendix Table 2"
    ]
    assert claimed == [row[:2] for row in TABLE_2]


@pytest.mark.parametrize("method, aggregation, shrinkage, lam, c, d", TABLE_1)
def test_regulariser_is_the_papers(method, aggregation, shrinkage, lam, c, d):
    recipe = make_recipe("mnist", "mlp", method, "full")
    published = {"aggregation": aggregation, "shrinkage": shrinkage, "lam": lam, "c": c, "d": d, "steps": 6}
    assert recipe.regulariser == recipe.regulariser | {"name": "amm", "high_order": True, "relative": False} | published
    assert "appendix Table 1" in recipe.source


def test_only_mnist_claims_a_published_regulariser():
    assert {r.dataset for r in every_recipe() if "appendix Table 1" in r.source} == {"mnist"}


def test_toy_is_section_3_3_3():
    recipe = make_recipe("toy", "linear", "min_lin")
    assert (recipe.scale, recipe.batch, recipe.epochs, recipe.lr, recipe.loss) == ("full", 20, 1000, 0.1, "none")
    assert recipe.decay == ((250, 0.5), (500, 0.25), (750, 0.125))
    assert [recipe.regulariser[name] for name in ("lam", "c", "d")] == [1, 1, 1]


def test_augmentation_and_frozen_batch_norm():
    looks = {name: make_recipe(name, "lenet", "amm", "full") for name in ("mnist", "cifar10", "cifar100", "svhn")}
    assert {name: (r.crop, r.flip) for name, r in looks.items()} == {
        "mnist": (None, False),
        "cifar10": ("resize36", True),
        "cifar100": ("resize36", True),
        "svhn": ("resize36", False),
    }
    frozen = {arch: make_recipe("cifar10", arch, "amm", "full").freeze_bn for arch in SCHEDULES["cifar10"]}
    assert [arch for arch in frozen if frozen[arch]] == ["resnet20", "resnet56", "densenet40", "resnet56_bottleneck"]
    assert not any(r.freeze_bn for r in every_recipe() if r.start != "reference")


def test_reference_has_the_same_schedule_from_scratch():
    reference, amm = (make_recipe("cifar10", "resnet20", method, "full") for method in ("reference", "amm"))
    differing = {f.name for f in fields(Recipe) if getattr(reference, f.name) != getattr(amm, f.name)}
    assert differing == {"method", "start", "freeze_bn", "regulariser", "source"}
    assert (reference.start, reference.regulariser) == ("scratch", None)


def test_imagenet_reference_is_not_trained():
    reference = make_recipe("imagenet", "resnet50", "reference", "full")
    assert (reference.start, reference.epochs, reference.decay) == ("pretrained", 0, ())


def test_other_methods():
    amm, masked = (make_recipe("mnist", "mlp", method, "full") for method in ("amm", "no_high_order"))
    assert masked.regulariser == amm.regulariser | {"high_order": False}
    elsayed = {"name": "elsayed", "lam": 64.0, "gamma": 0.5, "overshoot": 0.02, "num_rivals": 10}
    assert make_recipe("mnist", "mlp", "elsayed").regulariser == elsayed
    recipe = make_recipe("mnist", "mlp", "deep_defense", "full")
    assert (recipe.start, recipe.epochs, recipe.lr, recipe.decay) == ("reference", 5, 5e-4, ())
    assert (recipe.weight_decay, recipe.regulariser["steps"], recipe.regulariser["relative"]) == (5e-4, 5, True)
    assert [recipe.regulariser[name] for name in ("lam", "c", "d")] == [15, 25, 5]
    assert make_recipe("cifar10", "nin", "deep_defense").regulariser == recipe.regulariser


def test_min_exp_is_another_name_of_amm():
    assert make_recipe("mnist", "mlp", "min_exp") == make_recipe("mnist", "mlp", "amm")
    assert "min_exp" not in METHODS


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


def test_new_epochs_move_the_cuts():
    recipe = make_recipe("mnist", "mlp", "amm", "full")
    cuts = {epochs: tuple(at for at, _ in recipe.with_(epochs=epochs).decay) for epochs in (200, 20, 3, 2, 1, 0)}
    assert cuts == {200: (100, 160), 20: (10, 16), 3: (1, 2), 2: (1,), 1: (), 0: ()}
    assert recipe.with_(epochs=20, decay=[[5, 0.5]]).decay == ((5, 0.5),)


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


@pytest.mark.parametrize(
    "call, reason",
    [
        (
            lambda: make_recipe("mnits", "mlp", "amm"),
            "unknown data set 'mnits'; choose from mnist, cifar10, .*mnist, cif",
        ),
        (
            lambda: make_recipe("mnist", "resnet20", "amm"),
            "unknown arch for mnist 'resnet20'; choose from mlp, lenet, liu",
        ),
        (lambda: make_recipe("mnist", "mlp", "amn"), "unknown method 'amn'; choose from reference, control, amm, avg"),
        (
            lambda: make_recipe("mnist", "mlp", "amm", "tiny"),
            "unknown scale 'tiny'; choose from full, short, tuned, auto",
        ),
        (
            lambda: make_recipe("own", "mlp", "amm", family="tiny"),
            "unknown family 'tiny'; choose from mnist, cifar, dig",
        ),
        (lambda: study("table9"), "unknown study 'table9'; choose from table1, table2, fig4"),
        (lambda: study("table1", "long"), "unknown scale 'long'"),
        (lambda: study("table1", "tuned"), "unknown scale of table1 'tuned'; choose from full, short"),
        (lambda: study("search_cifar10", "full"), "unknown scale of search_cifar10 'full'; choose from tuned"),
        (
            lambda: make_recipe("mnist", "mlp", "amm", "tuned"),
            "at the tuned scale 'mnist'; choose from cifar10, cifar100",
        ),
        (
            lambda: make_recipe("own", "resnet20", "amm", "tuned", "cifar"),
            "at the tuned scale 'own'; choose from cifar10",
        ),
        (
            lambda: make_recipe("cifar10", "nin", "amm", "tuned"),
            "at the tuned scale 'nin'; choose from resnet20, resnet56",
        ),
    ],
)
def test_unknown_names_list_the_choices(call, reason):
    with pytest.raises(ValueError, match=reason):
        call()


@pytest.mark.parametrize("cuda, auto", [(True, "full"), (False, "short")])
def test_scale_auto(cuda, auto):
    assert [resolve_scale(scale, cuda) for scale in (*VALUES["scale"], "auto")] == ["full", "short", "tuned", auto]


def test_auto_follows_the_device(monkeypatch):
    for cuda, scale in ((True, "full"), (False, "short")):
        monkeypatch.setattr("torch.cuda.is_available", lambda cuda=cuda: cuda)
        assert make_recipe("mnist", "mlp", "amm").scale == scale
        assert study("table2") == study("table2", scale)
        assert study("fig1") == study("fig1", "full")


def test_short_schedules():
    cuts = {("mnist", "mlp"): ((10, 0.1), (16, 0.01)), ("cifar10", "lenet"): ((37, 0.1), (52, 0.01))}
    for (dataset, arch), decay in cuts.items():
        assert make_recipe(dataset, arch, "amm", "short").decay == decay
    for dataset, arch in (row[:2] for row in TABLE_2):
        full, short = (make_recipe(dataset, arch, "amm", scale) for scale in ("full", "short"))
        at = [epoch for epoch, _ in short.decay]
        assert short.epochs < full.epochs
        assert at == sorted(set(at))
        assert all(0 < epoch < short.epochs for epoch in at)
        assert [by for _, by in short.decay] == [by for _, by in full.decay][: len(at)]
        kept = ("lr", "batch", "start", "regulariser")
        assert [getattr(short, name) for name in kept] == [getattr(full, name) for name in kept]


@pytest.mark.parametrize(
    ("dataset", "arch", "weights", "epochs", "cut"),
    [
        ("cifar10", "resnet20", "akamaster", 12, 9),
        ("cifar10", "resnet56", "akamaster", 6, 4),
        ("cifar100", "resnet20", "chenyaofo", 12, 9),
        ("cifar100", "resnet56", "chenyaofo", 6, 4),
        ("svhn", "resnet20", None, 6, 4),
    ],
)
def test_the_tuned_scale_has_a_control_that_differs_in_the_regulariser_alone(dataset, arch, weights, epochs, cut):
    reference, control, amm = (make_recipe(dataset, arch, m, "tuned") for m in ("reference", "control", "amm"))
    differing = {f.name for f in fields(Recipe) if getattr(control, f.name) != getattr(amm, f.name)}
    assert differing == {"method", "regulariser", "source"} and control.regulariser is None
    assert (amm.epochs, amm.lr, amm.decay, amm.batch) == (epochs, 0.003, ((cut, 0.1),), 128)
    assert (amm.start, amm.freeze_bn, amm.weights) == ("reference", True, weights)
    assert reference_of(amm) == reference_of(control) == reference and reference.weights == weights
    if weights:
        assert (reference.start, reference.epochs, reference.decay) == ("pretrained", 0, ())
        assert (amm.crop, amm.flip, amm.half) == ("pad4", True, "report") and f"{weights}'s weights" in reference.source
        assert reference_of(amm.with_(half="search")).half == "search"
    else:
        assert (reference.start, reference.epochs, reference.half) == ("scratch", 15, None)


def test_scale_cuts_keeps_them_apart():
    for new in range(120):
        at = [epoch for epoch, _ in scale_cuts(AT_50_80, 100, new)]
        assert at == sorted(set(at))
        assert all(0 < epoch < new for epoch in at)


def test_own_data_take_the_rows_of_their_family():
    own, like = (make_recipe(name, "resnet20", "amm", "full", family="cifar") for name in ("own", "cifar10"))
    differing = {f.name for f in fields(Recipe) if getattr(own, f.name) != getattr(like, f.name)}
    assert differing == {"dataset", "flip"}
    assert make_recipe("own", "resnet20", "amm", "short", family="cifar").train_size is None
    assert reference_of(own) == make_recipe("own", "resnet20", "reference", "full", family="cifar")


def test_reference_of_has_the_same_data():
    recipe = make_recipe(
        "cifar10", "nin", "deep_defense", "short", train_size=1000, noisy=10, validation=True, flip=False
    )
    expected = make_recipe(
        "cifar10", "nin", "reference", "short", train_size=1000, noisy=10, validation=True, flip=False
    )
    assert reference_of(recipe) == expected


def test_regularisers_can_be_built():
    classes = {"amm": AMM, "elsayed": Elsayed, "refined": Refined}
    for recipe in every_recipe():
        made = classes.get((recipe.regulariser or {}).get("name"))
        assert made is None or made(**recipe.arguments).lam == recipe.regulariser["lam"]


def test_names_agree_with_the_data():
    assert VALUES["crop"] == tuple(CROPS)
    rows = {(dataset, arch): row for dataset, rows in COMMUNITY.items() for arch, row in rows.items()}
    assert set(VALUES["weights"]) == {None, *(row.author for row in rows.values())}
    for (dataset, arch), row in rows.items():
        assert make_recipe(dataset, arch, "amm", "tuned").weights == row.author
        assert ("option B" in extent(make_recipe(dataset, arch, "amm", "tuned"))) == (row.shortcut == "B")
    assert all(SCHEDULES[name] for name in BY_DATASET)
