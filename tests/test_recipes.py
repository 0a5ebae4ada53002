"""Facts about the recipes: they are the paper's rows, and a wrong name says which are right."""

from dataclasses import fields

import pytest
from trainings import every_recipe

from ammlib.data.batches import CROPS
from ammlib.margin.amm import AMM
from ammlib.margin.baselines import Elsayed, Refined
from ammlib.models.community import COMMUNITY
from ammlib.report.frame import extent
from ammlib.training.recipes import BY_DATASET, METHODS, SCHEDULES, VALUES, Recipe, make_recipe, reference_of
from ammlib.training.studies import study

TABLE_1 = [  # of the appendix: method, aggregation, shrinkage, λ, c, d
    ("avg_lin", "avg", "lin", 1, 4, 4),
    ("avg_inv", "avg", "inv", 32, 4, 2),
    ("avg_exp", "avg", "exp", 32, 2, 2),
    ("min_lin", "min", "lin", 1, 0.5, 4),
    ("min_inv", "min", "inv", 32, 1, 0.5),
    ("min_exp", "min", "exp", 32, 2, 1),
]


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
