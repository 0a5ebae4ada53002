"""Facts about notebook 10's table, figure and verdict, from made-up runs and measurements."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Annotation, Text

from ammlib.experiments import systems as measurements
from ammlib.methods.registry import METHODS
from ammlib.report import figures, systems
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import Run, run_name, store_run
from ammlib.training.studies import study

pytestmark = pytest.mark.usefixtures("own_folders")


def store(arch, seeds=2, **metrics):
    """Runs with an error and a margin each, the seeds a hundredth apart."""
    for recipe, seed in study("systems"):
        if recipe.arch == arch and recipe.method in metrics and seed < seeds:
            error, margin = metrics[recipe.method]
            numbers = {"error": error + 0.01 * seed, "margin": margin + 0.01 * seed}
            about = dict(train_images=1, weights="", versions={}, device="cpu", seconds=0.0)
            store_run(Run(recipe, seed, numbers, history=[], **about))


def measured(arch, **values):
    """The margin by the tight attack and the time of a step of each method."""
    known = {method: dict(tight=tight, ms=ms, x_plain=ms / 4, robust=[0.5]) for method, (tight, ms) in values.items()}
    return {"radii": [1.0], "nets": {arch: {"methods": known}}}


def cells(table, **where):
    frame = table.frame
    for name, value in where.items():
        frame = frame[frame[name] == value]
    (line,) = frame.to_dict("records")
    return line


def test_a_published_error_stands_in_the_row_of_its_own_net():
    rows = systems.summary({}).set_index(["arch", "method"]).published
    assert (rows["mlp", "dropconnect"], rows["lenet", "dropconnect"]) == (1.20, 0.63)
    assert (rows["mlp", "bayes_by_backprop"], rows["lenet", "crn"], rows["lenet", "disturblabel"]) == (1.32, 0.73, 0.63)
    assert (rows["mlp", "amm"], rows["lenet", "amm"], rows["mlp", "reference"]) == (0.90, 0.56, 1.79)
    elsewhere = ("lenet", "bayes_by_backprop"), ("mlp", "crn"), ("mlp", "dlsvm"), ("mlp", "dlsvm_noise")
    assert rows[[*elsewhere, ("lenet", "l_softmax"), ("lenet", "em_softmax"), ("mlp", "elsayed")]].isna().all()
    (note,) = systems.table({}).notes
    assert "DLSVM 0.87 % (mlp512; Gaussian), L-Softmax 0.31 % (liunet" in note and "DropConnect" not in note


def test_the_table_has_means_deviations_and_what_was_measured():
    store("mlp", reference=(2.0, 1.0), mma=(1.5, 2.0))
    line = cells(systems.table(measured("mlp", reference=(0.9, 4.0), mma=(1.7, 40.0))), net="mlp", method="MMA")
    assert (line["error %"], line["margin"]) == ("1.50 ± 0.01", "2.00 ± 0.01")
    assert [line[name] for name in ("tight", "PGD 1", "ms a step", "x plain")] == ["1.70", "50", "40.00", "10.00"]


def test_the_verdict_says_what_is_larger_by_how_much_and_what_has_not_run():
    own = dict(l_softmax=(1.8, 1.5), em_softmax=(1.9, 1.03), dlsvm=(0.9, 1.3))
    store("mlp", reference=(2.0, 1.0), amm=(1.0, 1.6), mma=(1.02, 2.0), boundary=(1.5, 2.0), **own)
    table = systems.verdict(measured("mlp", reference=(0.8, 4.0), l_softmax=(1.0, 5.0)))
    feature = cells(table, kind="margin in feature space", net="mlp")
    assert feature["margin larger than the reference's"] == "L-Softmax ×1.50 / 1.25, DLSVM ×1.30"
    assert feature["not larger"] == "EM-Softmax ×1.03"  # by less than 5 %
    assert (feature["error below AMM's"], feature["margin above AMM's, error not"]) == ("DLSVM", "none")
    assert (feature["a step, x plain"], feature["missing"]) == ("L-Softmax 1.2", "DLSVM + noise")
    inputs = cells(table, kind="input margin", net="mlp")
    assert inputs["margin above AMM's, error not"] == "MMA"  # 2 % more errors are not more; the boundary's 50 % are
    noise = cells(table, kind="noise", net="mlp")
    assert noise["margin larger than the reference's"] == noise["error below AMM's"] == "not run"
    assert noise["missing"] == "DisturbLabel, DropConnect, Bayes"


def test_seeds_that_differ_as_much_decide_nothing():
    store("mlp", reference=(2.0, 1.0), crn=(2.0, 1.1))
    rows = systems.summary({}).set_index(["arch", "method"]).loc["mlp"]
    assert systems.exceeds(rows, "margin", "crn", "reference")
    rows.loc["crn", "margin_std"] = 0.06
    assert not systems.exceeds(rows, "margin", "crn", "reference")
    rows.loc["crn", "margin_std"] = float("nan")  # one seed: 5 % alone
    assert systems.exceeds(rows, "margin", "crn", "reference")
    table = systems.verdict({})
    assert cells(table, kind="contraction, small Jacobian", net="mlp")["error below AMM's"] == "not run"  # AMM has not


def test_every_method_of_the_study_has_a_kind():
    kinds = [method for methods in systems.KINDS.values() for method in methods]
    assert sorted(["reference", *kinds]) == sorted({job.recipe.method for job in study("systems")})
    assert {*systems.SHORT} <= {*METHODS}


def test_the_figure_names_what_has_run_and_leaves_out_a_net_with_nothing_but_the_reference():
    store("mlp", reference=(2.0, 1.0), amm=(1.0, 1.6), dropconnect=(1.0, 1.6), dlsvm=(1.01, 1.61))
    store("lenet", reference=(1.0, 1.2))
    figure = figures.error_against_margin(measured("mlp", amm=(1.4, 1.0)))
    (axes,) = figure.axes
    names = [text for text in axes.texts if isinstance(text, Annotation)]
    assert axes.get_title() == "mlp"
    assert {text.get_text() for text in names} == {"reference", "AMM", "DropConnect", "DLSVM"}
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(name) for name in names]  # without the lines to their points
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    plt.close(figure)


def test_with_no_runs_the_figure_says_so():
    (axes,) = figures.error_against_margin({}).axes
    assert [text.get_text() for text in axes.texts] == ["not run yet"]
    plt.close("all")


def test_a_measurement_of_another_run_is_not_kept(monkeypatch):
    recipe, reference = (make_recipe("mnist", "mlp", method, "short") for method in ("dlsvm", "reference"))
    stored = {
        "dlsvm": {"run": run_name(recipe, 0), "ms": 8.0, "x_plain": 2.0},
        "reference": {"run": run_name(reference, 0), "ms": 4.0, "x_plain": 1.0},
    }
    monkeypatch.setattr(measurements, "load", lambda part: {"nets": {"mlp": {"methods": stored}}})
    assert measurements.known(recipe) == {"dlsvm": stored["dlsvm"]}
    assert measurements.known(recipe.with_(C=30.0)) == {}
