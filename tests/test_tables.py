"""Facts about the tables of paper versus ours."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest

from ammlib.report import figures, readme, tables
from ammlib.report.claims import comparisons, verdict
from ammlib.report.notebook import nets_at_hand, stored_runs
from ammlib.training import execute, runs
from ammlib.training.execute import run_or_load
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import Run, store_run
from ammlib.training.studies import study


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A results folder without runs; the published numbers are those of the checkout."""
    monkeypatch.setenv("AMMLIB_RESULTS", str(tmp_path))


def finished(recipe, seed, error, margin):
    metrics = {"error": error, "margin": margin}
    return Run(recipe, seed, metrics, history=[], train_images=1, weights="", versions={}, device="cpu", seconds=0.0)


def row(rows, method, metric, condition=""):
    (found,) = [r for r in rows if (r.recipe.method, r.metric, r.condition) == (method, metric, condition)]
    return found


def test_every_published_number_is_read_and_competitors_are_marked():
    numbers = tables.published()
    assert len(numbers) == 146
    assert {p.method for p in numbers if p.competitor} >= {"dropconnect", "l_softmax", "em_softmax"}
    (amm,) = [p for p in numbers if (p.source, p.arch, p.method, p.metric) == ("Table 3", "mlp", "amm", "error")]
    assert (amm.value, amm.std, str(amm)) == (0.90, 0.03, "0.90 ± 0.03")


def test_what_has_not_run_is_shown_so(results):
    rows = tables.compare("table2", "short")
    assert {r.ours for r in rows} == {"not run"}
    assert {r.same_direction for r in rows} == {None}
    assert str(row(rows, "amm", "error").paper) == "0.90 ± 0.03"


def test_means_are_over_the_seeds_that_have_run_and_directions_are_those_of_the_change(results):
    for recipe, seed in study("table2", "short"):
        error, margin = {"reference": (2.0, 0.8), "amm": (1.0, 1.5), "no_high_order": (2.5, 0.9)}.get(
            recipe.method, (2.0, 0.8)
        )
        if recipe.method != "elsayed":
            store_run(finished(recipe, seed, error + 0.1 * seed, margin))
    rows = tables.compare("table2", "short")
    assert row(rows, "amm", "error").ours == "1.10 ± 0.10 (n=3)"
    assert row(rows, "amm", "error").same_direction is True
    assert row(rows, "amm", "margin").same_direction is True
    assert row(rows, "no_high_order", "error").same_direction is False  # the paper's is lower than its reference
    assert row(rows, "reference", "error").same_direction is None
    assert row(rows, "elsayed", "error").ours == "not run"


def test_runs_of_another_scale_or_recipe_are_never_mixed_in(results):
    full = make_recipe("mnist", "mlp", "amm", "full")
    store_run(finished(full, 0, 1.0, 1.0))
    store_run(finished(make_recipe("mnist", "mlp", "amm", "short", lam=1.0), 0, 1.0, 1.0))
    assert row(tables.compare("table2", "short"), "amm", "error").ours == "not run"
    assert row(tables.compare("table2", "full"), "amm", "error").ours == "1.00 (n=1)"


def test_subsets_and_noise_find_the_numbers_of_the_text(results):
    fig4 = tables.compare("fig4", "short")
    assert row(fig4, "amm", "error", "train=20000").paper.value == 1.54
    fig5 = tables.compare("fig5", "short")
    below_10, above_40 = (row(fig5, method, "error", "noisy=55000") for method in ("amm", "reference"))
    assert (str(below_10.paper), str(above_40.paper)) == ("<10.00", ">40.00")
    assert tables.same_direction(replace(below_10, values=(20.0,)), replace(above_40, values=(30.0,))) is True
    assert tables.same_direction(replace(below_10, values=(30.0,)), replace(above_40, values=(20.0,))) is False
    above_146, reference = (row(fig5, method, "error") for method in ("elsayed", "reference"))  # of 1.79 in the paper
    assert tables.same_direction(replace(above_146, values=(1.5,)), replace(reference, values=(2.0,))) is None


def test_text_has_a_line_for_each_row(results):
    rows = tables.compare("table3", "short")
    header, first, *others = tables.as_text(rows).splitlines()
    assert len(others) == len(rows) - 1 and "scale" in header
    assert all(cell in first for cell in rows[0].cells()) and "not run" in first


def test_the_extent_tells_what_the_short_scale_amounts_to():
    assert tables.extent(make_recipe("cifar10", "lenet", "amm", "full")) == "full"
    assert tables.extent(make_recipe("mnist", "mlp", "amm", "short")) == "short: 20 epochs, all images"
    assert tables.extent(make_recipe("cifar10", "lenet", "amm", "short")) == "short: 60 epochs, 5,000 images"
    assert tables.extent(make_recipe("cifar10", "resnet20", "amm", "short")) == "short: 20 + 20 epochs, 5,000 images"
    assert tables.extent(make_recipe("svhn", "nin", "amm", "short")) == "trial: 1 + 1 epoch, 1,000 images"
    tuned = {
        name: tables.extent(make_recipe(name, "resnet20", "amm", "tuned")) for name in ("cifar10", "cifar100", "svhn")
    }
    assert tuned["cifar10"] == "tuned: 12 epochs from akamaster's, all images, half of the test images"
    assert tuned["cifar100"] == "tuned: 12 epochs from chenyaofo's (option B), all images, half of the test images"
    assert tuned["svhn"] == "tuned: 15 + 6 epochs, 73,257 images"


def test_the_tuned_scale_shows_reference_control_and_amm_beside_the_paper(results):
    numbers = {"reference": (8.3, 0.11), "control": (8.4, 0.112), "amm": (8.2, 0.142)}
    for recipe, seed in study("table4", "tuned"):
        store_run(finished(recipe, seed, *numbers[recipe.method]))
    rows = [r for r in tables.compare("table4", "tuned") if r.recipe.arch == "resnet20"]
    shown = {(r.recipe.method, r.metric): (len(r.values), r.same_direction, r.paper is None) for r in rows}
    assert shown["reference", "error"] == (1, None, False) and shown["control", "error"] == (2, None, True)
    assert shown["amm", "error"] == shown["amm", "margin"] == (2, True, False)
    search = tables.compare("search_cifar10")
    assert len({(r.recipe.method, r.condition) for r in search}) == 11 and not any(r.paper for r in search)


def test_a_control_has_a_line_of_its_own_and_no_number_of_the_paper(results):
    for (recipe, seed), error in zip(study("control", "short"), (50.0, 45.0, 44.0), strict=True):
        store_run(finished(recipe, seed, error, 0.1))
    lines = [line.split("  ")[0] for line in tables.beside_paper(tables.compare("control", "short")).splitlines()]
    assert lines == ["method", "reference", "reference, trained longer", "AMM (MIN+EXP)"]
    rows = tables.compare("control", "short")
    assert row(rows, "reference", "error").values == (50.0,)
    assert row(rows, "reference", "error", "trained longer").values == (45.0,)
    assert row(rows, "reference", "error", "trained longer").paper is None


def test_the_readme_shows_what_has_run_and_names_what_has_not(results, monkeypatch):
    monkeypatch.setattr(readme, "STUDIES", ["table4"])
    store_run(finished(make_recipe("cifar10", "lenet", "reference", "short"), 0, 39.0, 0.2))
    *table, _, missing = readme.results_table().splitlines()
    assert [line.split(" | ")[2] for line in table[2:]] == ["reference", "AMM (MIN+EXP)"]
    assert "39.00 (n=1)" in table[2] and "not run" in table[3]
    assert missing.startswith("Not run on cifar10: nin, ") and "lenet" not in missing


# ---- claims


def values_of(name, **errors):
    """The rows of a study, with three values around the given error of each method."""
    rows = tables.compare(name, "short")
    spread = (-0.1, 0.0, 0.1)
    return [
        replace(r, values=tuple(errors[r.recipe.method] + s for s in spread)) if r.recipe.method in errors else r
        for r in rows
    ]


def test_a_claim_holds_where_every_mean_is_lower_than_the_next(results):
    rows = values_of("table2", reference=2.0, no_high_order=1.5, amm=1.0, elsayed=1.2)
    text = verdict(rows, "error: amm < no_high_order < reference")
    assert text.startswith("reproduced at short scale: 2 of 2 ")
    text = verdict(rows, "error: amm < no_high_order < elsayed")
    assert text.startswith("partly reproduced at short scale: 1 of 2 ")
    text = verdict(rows, "error: reference < amm")
    assert text.startswith("not reproduced at short scale: 0 of 1 ")
    text = verdict(rows, "error: reference > no_high_order > amm")
    assert text.startswith("reproduced at short scale: 2 of 2 ") and "+33 %" in text and "+50 %" in text


def test_what_cannot_be_told_is_counted_apart_and_names_the_missing_runs(results):
    rows = values_of("table2", reference=2.0, amm=1.0)
    conclusion, missing, *_ = verdict(
        rows, "error: amm < no_high_order < reference", "error: amm < reference"
    ).splitlines()
    assert conclusion.startswith("reproduced so far at short scale: 1 of 1 ")
    assert missing == "2 of 3 cannot be told yet; missing runs: mnist/mlp/no_high_order, mnist/mlp/elsayed"
    assert verdict(tables.compare("table2", "short"), "error: amm < reference").startswith("not run at short scale")


def test_nets_that_only_show_that_they_run_tell_nothing(results):
    rows = values_of("table4", reference=80.0, amm=70.0)
    told = {c.place[0] for c in comparisons(rows, "error: amm < reference") if c.holds is not None}
    assert told == {"lenet", "resnet20"}
    assert (
        verdict(rows, "error: amm < reference").splitlines()[1]
        == "5 of 7 cannot be told yet; trials on at most 1,000 images"
    )
    for arch, direction in (("lenet", True), ("nin", None)):
        net = {r.recipe.method: r for r in rows if r.recipe.arch == arch and r.metric == "error"}
        assert tables.same_direction(net["amm"], net["reference"]) is direction


def test_a_difference_no_larger_than_both_deviations_is_called_so(results):
    (near,) = comparisons(values_of("table2", reference=2.0, amm=1.9), "error: amm < reference")
    (far,) = comparisons(values_of("table2", reference=2.0, amm=1.7), "error: amm < reference")
    assert (near.holds, near.close, far.holds, far.close) == (True, True, True, False)  # 0.1 + 0.1 on either side
    assert near.cells()[-2] == "-5 %, within the spread"
    assert far.cells()[-2] == "-15 %"


def test_a_claim_is_about_every_condition_unless_its_terms_name_their_own(results):
    rows = values_of("fig4", reference=2.0, amm=1.0)
    everywhere = list(comparisons(rows, "error: amm < reference"))
    assert [c.place[1] for c in everywhere] == ["train=5000", "train=10000", "train=20000", "train=60000"]
    (once,) = comparisons(rows, "error: amm train=20000 < reference train=60000")
    assert once.holds and once.cells()[-1] == "1.54 ± 0.04 | 1.81 ± 0.05"
    (limit,) = comparisons(rows, "error: 1.5 < reference train=5000")
    assert limit.holds


@pytest.mark.parametrize("claim", ["error: amm < nobody", "error: amm", "speed: amm < reference", "amm < reference"])
def test_a_claim_about_nothing_is_an_error(results, claim):
    with pytest.raises(ValueError, match="nobody|a claim is like"):
        verdict(values_of("table2", reference=2.0, amm=1.0), claim)


# ---- stored runs and what is said of them


def test_of_the_runs_wanted_the_stored_ones_are_given_and_the_others_counted(results, capsys, monkeypatch):
    monkeypatch.setattr(execute, "execute", lambda *_, **__: pytest.fail("trained, though not asked to"))
    wanted = study("table2", "short")
    for recipe, seed in wanted[:4]:
        store_run(finished(recipe, seed, 1.0, 1.0))
    assert [(run.recipe, run.seed) for run in stored_runs(wanted)] == wanted[:4]
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["4 of 12 runs are stored", "not run: mnist/mlp/no_high_order, 2 of 3"]


def test_the_missing_runs_are_trained_when_asked_for_after_saying_how_long_it_takes(own_folders, capsys):
    recipe = make_recipe("digits", "mlp", "amm", epochs=1, train_size=60, batch=20)
    (run,) = stored_runs([(recipe, 0)], train=True)
    assert runs.load_run(recipe, 0) == run
    assert "training 1 on " in capsys.readouterr().out
    assert stored_runs([(recipe, 0)]) == [run]


def test_nets_are_at_hand_only_with_the_very_weights_of_their_run(own_folders):
    recipe = make_recipe("digits", "mlp", "reference", epochs=1, train_size=60, batch=20)
    run = run_or_load(recipe, 0, progress=False)
    assert list(nets_at_hand([run])) == ["reference"]
    assert nets_at_hand([replace(run, weights="of another")]) == {}
    runs.weights_path(recipe, 0).unlink()
    assert nets_at_hand([run]) == {}


def test_settings_show_what_varies_and_each_source_once():
    text = tables.settings(study("grid_min_exp", "short"))
    assert "λ=16|32|64 c=1|2|4 d=0.5|1|2" in text
    text = tables.settings(study("table1", "short"))
    assert text.count("appendix Table 1") == 1
    assert "avg_lin, avg_inv, avg_exp, min_lin, min_inv, amm: appendix Table 1 (found with the MLP)" in text


def test_competitors_stand_above_ours_with_error_beside_margin(results):
    lines = tables.with_competitors(tables.compare("table3", "short")).splitlines()
    assert len(lines) == 1 + 8 + 6
    assert lines[2].split() == ["dropconnect", "mlp", "1.20", "±", "0.03", "no", "augmentation"]
    assert lines[10].split("  ")[0] == "AMM (MIN+EXP)" and "0.90 ± 0.03" in lines[10] and "1.90" in lines[10]


def test_the_cells_of_a_search_are_told_apart_and_ranked(results):
    search = study("grid_min_exp", "short")
    for error, (recipe, seed) in enumerate(search):
        store_run(finished(recipe, seed, 5.0 - error / 10, 1.0))
    assert len({r.condition for r in tables.compare("grid_min_exp", "short")}) == 27
    lines = tables.ranking(stored_runs(search)).splitlines()
    assert lines[1].split() == ["1", "λ=64", "c=4", "d=2", "2.40", "1.00"]
    assert [line for line in lines if "the recipe" in line] == [lines[14]] and "λ=32 c=2 d=1" in lines[14]
    assert tables.ranking([]) == "not run"
    reference = finished(make_recipe("mnist", "mlp", "reference", "short", validation=True), 0, 3.0, 0.5)
    assert tables.ranking([reference]).splitlines()[1].split() == ["1", "reference", "3.00", "0.50"]


def test_the_course_of_a_training_is_told_by_its_last_epoch_and_its_best():
    recipe = make_recipe("mnist", "mlp", "amm", "short")
    epoch = {"train_error": 1.0, "test_margin": 1.5, "regulariser": None, "kept": 9.0, "kept_margin": 0.5}
    history = [{**epoch, "test_error": error} for error in (3.0, 1.0, 2.0)]
    header, line = tables.course([replace(finished(recipe, 0, 2.0, 1.5), history=history)]).splitlines()
    numbers = ["1.00", "2.00", "1.50", "9.00", "0.50", "1.00", "0.45"]
    assert line.split() == ["mlp", "AMM", "(MIN+EXP)", *numbers]
    assert header.endswith("truncated from")  # log(50 / 32) / d


@pytest.mark.parametrize(("method", "margin"), [("amm", f"{math.log(50 / 32):.2f}"), ("avg_lin", ""), ("refined", "")])
def test_the_pull_of_a_misclassified_sample_ends_where_its_term_is_truncated(method, margin):
    assert tables.truncated_from(make_recipe("mnist", "mlp", method)) == margin


def test_figures_of_what_has_not_run_say_so(results):
    rows = tables.compare("fig5", "short")
    figure, (left, right) = plt.subplots(1, 2)
    figures.convergence(left, [], paper=rows)
    figures.sweep(right, [], "noisy", 0, rows)
    others = (
        figures.along_training([], "kept", "test_margin"),
        figures.margin_panels([], {}),
        figures.grid_search([], {}),
    )
    for axes in (left, right, *(axes for other in others for axes in other.axes)):
        assert any("not run" in text.get_text() for text in axes.texts)
    plt.close("all")
