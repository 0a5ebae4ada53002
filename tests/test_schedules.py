"""Facts about schedules: epochs, rates and cuts are the paper's, and in order at every scale."""

from dataclasses import fields

import pytest

from ammlib.training.recipes import SCHEDULES, VALUES, Recipe, make_recipe, reference_of, resolve_scale, scale_cuts
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


# ---- the paper's


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


# ---- other scales


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


# ---- moved cuts


def test_new_epochs_move_the_cuts():
    recipe = make_recipe("mnist", "mlp", "amm", "full")
    cuts = {epochs: tuple(at for at, _ in recipe.with_(epochs=epochs).decay) for epochs in (200, 20, 3, 2, 1, 0)}
    assert cuts == {200: (100, 160), 20: (10, 16), 3: (1, 2), 2: (1,), 1: (), 0: ()}
    assert recipe.with_(epochs=20, decay=[[5, 0.5]]).decay == ((5, 0.5),)


def test_scale_cuts_keeps_them_apart():
    for new in range(120):
        at = [epoch for epoch, _ in scale_cuts(AT_50_80, 100, new)]
        assert at == sorted(set(at))
        assert all(0 < epoch < new for epoch in at)
