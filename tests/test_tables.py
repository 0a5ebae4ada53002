"""Facts about the tables of paper versus ours."""

import math
import re
from dataclasses import replace
from io import StringIO

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import ammlib
from ammlib.report import figures, readme, tables
from ammlib.report.claims import table_of, verdict
from ammlib.report.frame import compare, distance, extent, jobs_behind, same_direction
from ammlib.report.notebook import nets_at_hand, stored_runs, study_runs
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


def store(name, scale, **errors):
    """Runs of a study with these errors, a tenth more from seed to seed, and margins of 1 + error."""
    for recipe, seed in study(name, scale):
        if recipe.method in errors:
            error = errors[recipe.method] + 0.1 * seed
            store_run(finished(recipe, seed, error, 1 + error))


def row(rows, method, metric="error", condition="", scale="short"):
    place = (rows.method == method) & (rows.metric == metric) & (rows.condition == condition) & (rows.scale == scale)
    (found,) = rows[place].itertuples()
    return found


def lines(table):
    return [" ".join(line.split()) for line in table.splitlines()]


# ---- frames


def test_every_published_number_is_read_and_competitors_are_marked():
    numbers = ammlib.published()
    assert len(numbers) == 146 and not numbers.drop(columns=["std"]).isna().any(axis=None)
    assert {*numbers[numbers.competitor].method} >= {"dropconnect", "l_softmax", "em_softmax"}
    (amm,) = numbers.query(
        "source == 'Table 3' and arch == 'mlp' and method == 'amm' and metric == 'error'"
    ).itertuples()
    assert (amm.value, amm.std) == (0.90, 0.03)


def test_results_have_a_row_for_each_run_with_recipe_and_metrics_as_columns(results):
    assert ammlib.results().empty and ammlib.history().empty
    store("table2", "short", amm=1.0, reference=2.0)
    store_run(
        replace(finished(make_recipe("mnist", "mlp", "amm", "full"), 0, 0.5, 2.0), history=[{"epoch": 9, "kept": 8.0}])
    )
    found = ammlib.results()
    assert len(found) == 7 and found.groupby("scale").error.mean().to_dict() == pytest.approx(
        {"short": 1.6, "full": 0.5}
    )
    amm = found[found.method == "amm"]
    assert (
        {*amm.lam} == {32.0} and {*amm.regulariser} == {"amm"} and found[found.method == "reference"].lam.isna().all()
    )
    assert ammlib.history()[["method", "scale", "seed", "epoch", "kept"]].to_numpy().tolist() == [
        ["amm", "full", 0, 9, 8.0]
    ]


def test_a_damaged_run_file_is_named(results, tmp_path):
    store("table2", "short", amm=1.0)
    path = next((tmp_path / "runs").rglob("*.json"))
    path.write_text("{}")
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        ammlib.results()


# ---- paper beside ours


def test_what_has_not_run_is_shown_so(results):
    rows = compare("table2", "short")
    assert not rows.n.any() and rows.same_direction.isna().all() and rows.distance.isna().all()
    assert lines(tables.beside_paper(rows))[2] == "mlp reference 1.79 ± 0.06 0.76 " + tables.not_run(
        row(rows, "reference")
    )


def test_what_has_not_run_says_how_long_it_would_take_where_steps_were_measured():
    said = {
        arch: tables.not_run(row(compare("table4", "full").query("arch == @arch"), "amm", scale="full"))
        for arch in ("densenet40", "resnet56_bottleneck")
    }
    assert said["densenet40"].startswith("not run here; full scale takes about 1,") and said["densenet40"].endswith(
        "hours"
    )
    assert said["resnet56_bottleneck"] == "not run here"


def test_means_are_over_the_seeds_that_have_run_and_directions_are_those_of_the_change(results):
    for recipe, seed in study("table2", "short"):
        error, margin = {"reference": (2.0, 0.8), "amm": (1.0, 1.5), "no_high_order": (2.5, 0.9)}.get(
            recipe.method, (2.0, 0.8)
        )
        if recipe.method != "elsayed":
            store_run(finished(recipe, seed, error + 0.1 * seed, margin))
    rows = compare("table2", "short")
    amm = row(rows, "amm")
    assert (tables.number(amm.ours, amm.std), amm.n) == ("1.10 ± 0.10", 3)
    assert row(rows, "amm").same_direction and row(rows, "amm", "margin").same_direction
    assert not row(rows, "no_high_order").same_direction  # the paper's is lower than its reference
    assert row(rows, "reference").same_direction is pd.NA
    assert row(rows, "elsayed").n == 0


def test_runs_of_another_scale_or_recipe_are_never_mixed_in(results):
    store_run(finished(make_recipe("mnist", "mlp", "amm", "full"), 0, 1.0, 1.0))
    store_run(finished(make_recipe("mnist", "mlp", "amm", "short", lam=1.0), 0, 1.0, 1.0))
    rows = compare("table2")
    assert (row(rows, "amm").n, row(rows, "amm", scale="full").n) == (0, 1)


def test_each_row_is_shown_at_the_largest_scale_that_has_runs_beside_its_reference(results):
    store("table2", "short", reference=2.0, amm=1.0, no_high_order=1.5)
    store("table2", "full", amm=0.9)
    shown = compare("table2").query("shown and metric == 'error'")
    assert list(zip(shown.method, shown.scale, shown.n, strict=True)) == [
        *[("amm", "full", 5), ("elsayed", "full", 0)],
        *[("reference", "short", 3), ("no_high_order", "short", 3)],
    ]
    store("table2", "full", reference=1.8)
    shown = compare("table2").query("shown and metric == 'error'")
    assert list(zip(shown.method, shown.scale, strict=True)) == [
        *[("reference", "full"), ("amm", "full"), ("elsayed", "full")],
        *[("reference", "short"), ("no_high_order", "short")],
    ]
    short = compare("table2", "short")
    assert short.shown.all() and {*short.scale} == {"short"}
    behind = jobs_behind(compare("table2"), "table2")
    assert {(job.recipe.method, job.recipe.scale) for job in behind} == {  # of each row one scale, never two in a mean
        *[("reference", "full"), ("amm", "full"), ("elsayed", "full"), ("no_high_order", "short")]
    }


def test_points_of_a_figure_that_have_neither_run_nor_a_number_of_the_paper_are_not_shown(results):
    shown = compare("fig4").query("shown")
    assert {*zip(shown.method, shown.condition, strict=True)} == {("amm", "train=20000"), ("reference", "train=60000")}


def test_the_distance_is_in_units_of_the_combined_standard_error(results):
    store("table3", "full", amm=0.80)  # five seeds: 1.0 ± 0.158
    (found,) = compare("table3", "full").query("arch == 'mlp' and method == 'amm' and metric == 'error'").itertuples()
    assert found.distance == pytest.approx((1.0 - 0.9) / math.sqrt(0.03**2 / 5 + 0.025 / 5))
    assert tables.judged(found.distance, "error") == "equal within 2 (+1.4)"
    one = pd.DataFrame([{"ours": 0.7, "std": math.nan, "n": 1, "paper": 0.9, "paper_std": 0.03}])
    assert distance(one).item() == pytest.approx(-0.2 / (0.03 * math.sqrt(1 / 5 + 1)))
    assert [
        tables.judged(z, m) for z, m in ((-6.1, "error"), (2.5, "error"), (2.5, "margin"), (math.nan, "error"))
    ] == [*["better (-6.1)", "worse (+2.5)", "better (+2.5)", ""]]


def test_subsets_and_noise_find_the_numbers_of_the_text(results):
    fig4 = compare("fig4", "short")
    assert row(fig4, "amm", condition="train=20000").paper == 1.54
    fig5 = compare("fig5", "short").query("metric == 'error'")
    below_10, above_40 = (row(fig5, method, condition="noisy=55000") for method in ("amm", "reference"))
    assert (below_10.bound, below_10.paper, above_40.bound, above_40.paper) == ("<", 10.0, ">", 40.0)
    for amm, reference, same in ((20.0, 30.0, True), (30.0, 20.0, False)):
        directions = same_direction(fig5.assign(ours=fig5.method.map({"amm": amm, "reference": reference})))
        assert directions[below_10.Index] == same
    above_146 = row(fig5, "elsayed")  # of 1.79 in the paper
    assert (
        same_direction(fig5.assign(ours=fig5.method.map({"elsayed": 1.5, "reference": 2.0})))[above_146.Index] is pd.NA
    )


def test_the_extent_tells_what_the_short_scale_amounts_to():
    assert extent(make_recipe("cifar10", "lenet", "amm", "full")) == "full"
    assert extent(make_recipe("mnist", "mlp", "amm", "short")) == "short: 20 epochs, all images"
    assert extent(make_recipe("cifar10", "lenet", "amm", "short")) == "short: 60 epochs, 5,000 images"
    assert extent(make_recipe("cifar10", "resnet20", "amm", "short")) == "short: 20 + 20 epochs, 5,000 images"
    tuned = {name: extent(make_recipe(name, "resnet20", "amm", "tuned")) for name in ("cifar10", "cifar100", "svhn")}
    assert tuned["cifar10"] == "tuned: 12 epochs from akamaster's, all images, half of the test images"
    assert tuned["cifar100"] == "tuned: 12 epochs from chenyaofo's (option B), all images, half of the test images"
    assert tuned["svhn"] == "tuned: 15 + 6 epochs, 73,257 images"


def test_the_tuned_scale_shows_reference_control_and_amm_beside_the_paper_and_no_short_one(results):
    numbers = {"reference": (8.3, 0.11), "control": (8.4, 0.112), "amm": (8.2, 0.142)}
    for scale in ("tuned", "short"):
        for recipe, seed in study("table4", scale):
            store_run(finished(recipe, seed, *numbers[recipe.method]))
    rows = compare("table4").query("shown and arch == 'resnet20'")
    assert {*rows.scale} == {"tuned"}
    shown = {
        (r.method, r.metric): (r.n, None if pd.isna(r.same_direction) else r.same_direction, pd.isna(r.paper))
        for r in rows.itertuples()
    }
    assert shown["reference", "error"] == (1, None, False) and shown["control", "error"] == (2, None, True)
    assert shown["amm", "error"] == shown["amm", "margin"] == (2, True, False)
    search = compare("search_cifar10")
    assert len(search.drop_duplicates(["method", "condition"])) == 11 and search.paper.isna().all()


def test_a_control_has_a_line_of_its_own_and_no_number_of_the_paper(results):
    for (recipe, seed), error in zip(study("control", "short"), (50.0, 45.0, 44.0), strict=True):
        store_run(finished(recipe, seed, error, 0.1))
    rows = compare("control", "short")
    names = tables.beside_paper(rows).frame[("", "method")]
    assert list(names) == ["reference", "reference, trained longer", "AMM (MIN+EXP)"]
    assert row(rows, "reference").ours == 50.0
    assert row(rows, "reference", condition="trained longer").ours == 45.0
    assert pd.isna(row(rows, "reference", condition="trained longer").paper)


def test_competitors_stand_above_ours_with_error_beside_margin(results):
    found = lines(tables.with_competitors(compare("table3", "short")))
    assert len(found) == 2 + 8 + 6
    assert found[3] == "mlp DropConnect 1.20 ± 0.03 no augmentation"
    assert found[11].startswith("mlp AMM (MIN+EXP) 0.90 ± 0.03 1.90 not run here")


def test_a_table_is_text_in_a_terminal_and_html_without_random_ids_in_a_notebook(results):
    store("table3", "short", reference=2.0, amm=1.0)
    table = tables.beside_paper(compare("table3", "short"))
    assert repr(table) == str(table) and table == tables.beside_paper(compare("table3", "short"))
    html = table._repr_html_()
    groups = re.findall(r'<th colspan="(\d)"[^>]*>([\w ]*)</th>', html)
    assert groups == [("2", ""), ("2", "paper"), ("4", "ours"), ("2", "same direction")]
    assert html.count('<b style="color: #007a56">yes</b>') == 3 and html.count("<b") == 6  # the margins say no
    assert " id=" not in html and html.count("<td") == html.count("nowrap") - html.count("<th ")


def test_latex_has_no_character_that_its_text_fonts_lack(results):
    text = tables.FORMATS["latex"](compare("table2", "short"))
    assert text.isascii() and r"$\nabla f$" in text and "$>$1.46" in text


@pytest.mark.parametrize("format", tables.FORMATS)
def test_a_comparison_has_all_its_rows_in_every_format(format, results):
    store("table2", "short", reference=2.0, amm=1.0)
    text = tables.FORMATS[format](compare("table2", "short"))
    if format == "csv":
        assert pd.read_csv(StringIO(text)).query("metric == 'error'").n.tolist() == [3, 0, 3, 0]
    else:
        assert text.count("reference") == 1 and text.count("AMM (MIN+EXP)") == 1 and text.count("not run here") == 2


def test_the_readme_goes_from_reference_to_method_and_names_what_has_not_run(results, monkeypatch):
    monkeypatch.setattr(readme, "STUDIES", ["table4"])
    for recipe, seed in study("table4", "tuned"):
        if recipe.arch == "resnet20":
            store_run(finished(recipe, seed, {"reference": 8.3, "control": 8.4, "amm": 8.2}[recipe.method], 0.1))
    *table, _, missing = readme.results_table().splitlines()
    (line,) = table[2:]
    assert line.startswith(
        "| cifar10 | resnet20 | AMM (MIN+EXP) | 8.20 → 7.62 | 8.30 → 8.20 ± 0.00 (control 8.40) | 0.10 →"
    )
    assert line.endswith("| error yes, margin **no** |")
    assert missing.startswith("Not run here on cifar10: lenet, nin, ") and "resnet20" not in missing


# ---- claims


def with_errors(name, **errors):
    """The rows of a study at short scale, as if three seeds had given about these errors."""
    rows = compare(name, "short")
    known = rows.method.isin(errors)
    return rows.assign(ours=rows.method.map(errors), std=0.1, n=3 * known)


def test_a_claim_holds_where_every_mean_is_lower_than_the_next(results):
    rows = with_errors("table2", reference=2.0, no_high_order=1.5, amm=1.0, elsayed=1.2)
    text = verdict(rows, "error: amm < no_high_order < reference")
    assert text.startswith("reproduced: as in the paper are 2 of 2 at short scale")
    text = verdict(rows, "error: amm < no_high_order < elsayed")
    assert text.startswith("partly reproduced: as in the paper are 1 of 2 at short scale")
    text = verdict(rows, "error: reference < amm")
    assert text.startswith("not reproduced: as in the paper are 0 of 1 at short scale")
    found = verdict(rows, "error: reference > no_high_order > amm")
    assert found.startswith("reproduced: as in the paper are 2 of 2") and {"+33 %", "+50 %"} == {
        *found.details.frame["change"]
    }


def test_a_verdict_is_one_line_and_has_its_comparisons_as_details(results):
    found = verdict(with_errors("table2", reference=2.0, amm=1.0), "error: amm < reference")
    assert (
        "\n" not in found
        and repr(found) == str(found)
        and found._repr_html_().startswith("<b>Verdict: reproduced</b>: ")
    )
    (told,) = lines(found.details)[1:]
    assert told.startswith(
        "yes mlp error: AMM (MIN+EXP) < reference 1.00 ± 0.10 | 2.00 ± 0.10 3 | 3 short -50 % 0.90 ±"
    )


def test_what_cannot_be_told_is_counted_apart(results):
    rows = with_errors("table2", reference=2.0, amm=1.0)
    found = verdict(rows, "error: amm < no_high_order < reference", "error: amm < reference")
    assert found.startswith("reproduced so far: as in the paper are 1 of 1 at short scale; 2 not run here")
    assert verdict(compare("table2", "short"), "error: amm < reference") == "not run here"


def test_a_comparison_is_at_the_largest_scale_at_which_both_sides_have_run(results):
    store("table2", "short", reference=2.0, amm=1.0, no_high_order=1.5)
    store("table2", "full", reference=1.8, amm=0.9)
    found = table_of(compare("table2"), ["error: amm < no_high_order", "error: amm < reference"])
    assert list(found.scale) == ["short", "full"]
    text = verdict(compare("table2"), "error: amm < reference")
    assert text.details.notes == (
        "at short scale alone (-p scale short): reproduced: as in the paper are 1 of 1 at short scale",
    )


def test_a_claim_about_a_control_is_only_about_nets_that_have_one(results):
    found = table_of(compare("table4"), ["error: amm < control"])
    assert list(found.net) == ["resnet20", "resnet56"] and {*found.holds} == {"?"}


def test_a_difference_no_larger_than_both_deviations_is_called_so(results):
    (near,) = table_of(with_errors("table2", reference=2.0, amm=1.85), ["error: amm < reference"]).itertuples()
    (far,) = table_of(with_errors("table2", reference=2.0, amm=1.7), ["error: amm < reference"]).itertuples()
    assert (near.holds, near.close, far.holds, far.close) == ("yes", True, "yes", False)  # 0.1 + 0.1 on either side
    assert (near.change, far.change) == ("-7 %, within the spread", "-15 %")


def test_a_claim_is_about_every_condition_unless_its_terms_name_their_own(results):
    rows = with_errors("fig4", reference=2.0, amm=1.0)
    everywhere = table_of(rows, ["error: amm < reference"])
    assert list(everywhere.condition) == ["train=5000", "train=10000", "train=20000", "train=60000"]
    (once,) = table_of(rows, ["error: amm train=20000 < reference train=60000"]).itertuples()
    assert once.holds == "yes" and once.paper == "1.54 ± 0.04 | 1.81 ± 0.05"
    (limit,) = table_of(rows, ["error: 1.5 < reference train=5000"]).itertuples()
    assert limit.holds == "yes" and limit.n == "3"


@pytest.mark.parametrize("claim", ["error: amm < nobody", "error: amm", "speed: amm < reference", "amm < reference"])
def test_a_claim_about_nothing_is_an_error(results, claim):
    with pytest.raises(ValueError, match="nobody|a claim is like"):
        verdict(with_errors("table2", reference=2.0, amm=1.0), claim)


# ---- stored runs and what is said of them


def test_of_the_runs_wanted_the_stored_ones_are_given_and_the_others_counted(results, capsys, monkeypatch):
    monkeypatch.setattr(execute, "execute", lambda *_, **__: pytest.fail("trained, though not asked to"))
    wanted = study("table2", "short")
    for recipe, seed in wanted[:4]:
        store_run(finished(recipe, seed, 1.0, 1.0))
    assert [(run.recipe, run.seed) for run in stored_runs(wanted)] == wanted[:4]
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["4 of 12 runs are stored; nothing is trained", "not run: mnist/mlp/no_high_order, 2 of 3"]


def test_a_notebook_gets_a_study_beside_the_paper_and_the_runs_behind_what_is_shown(results, capsys):
    store("table3", "short", reference=2.0, amm=1.0)
    store("table3", "full", reference=1.8)
    rows, found = study_runs("table3", arch="mlp")
    assert len(found) == 8  # five references at full, three of AMM at short scale
    assert {(run.recipe.scale, run.recipe.arch) for run in found} == {("full", "mlp"), ("short", "mlp")}
    assert rows.equals(compare("table3")) and capsys.readouterr().out == "8 of 8 runs are stored; nothing is trained\n"
    assert {run.recipe.scale for run in study_runs("table3", "short")[1]} == {"short"}


def test_the_missing_runs_are_trained_when_asked_for_after_saying_how_long_it_takes(own_folders, capsys):
    recipe = make_recipe("digits", "mlp", "amm", epochs=1, train_size=60, batch=20)
    (run,) = stored_runs([(recipe, 0)], train=True)
    assert runs.load_run(recipe, 0) == run
    assert "; training " in capsys.readouterr().out
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


def test_the_cells_of_a_search_are_told_apart_and_ranked(results):
    search = study("grid_min_exp", "short")
    for error, (recipe, seed) in enumerate(search):
        store_run(finished(recipe, seed, 5.0 - error / 10, 1.0))
    assert compare("grid_min_exp", "short").condition.nunique() == 27
    lines = tables.ranking(stored_runs(search)).splitlines()
    assert lines[1].split() == ["1", "AMM", "(MIN+EXP)", "λ=64", "c=4", "d=2", "2.40", "1.00"]
    assert [line for line in lines if "the recipe" in line] == [lines[14]] and "λ=32 c=2 d=1" in lines[14]
    assert tables.ranking([]) == "not run"
    reference = finished(make_recipe("mnist", "mlp", "reference", "short", validation=True), 0, 3.0, 0.5)
    assert tables.ranking([reference]).splitlines()[1].split() == ["1", "reference", "3.00", "0.50"]


def test_the_course_of_a_training_is_told_by_its_last_epoch_and_its_best():
    recipe = make_recipe("mnist", "mlp", "amm", "short")
    epoch = {"train_error": 1.0, "test_margin": 1.5, "regulariser": None, "kept": 9.0, "kept_margin": 0.5}
    history = [{**epoch, "test_error": error} for error in (3.0, 1.0, 2.0)]
    history = [{"epoch": number, **epoch} for number, epoch in enumerate(history, 1)]
    header, line = tables.course([replace(finished(recipe, 0, 2.0, 1.5), history=history)]).splitlines()
    numbers = ["1.00", "2.00", "1.50", "9.00", "0.50", "1.00", "0.45"]
    assert line.split() == ["mlp", "AMM", "(MIN+EXP)", "short", *numbers]
    assert header.endswith("truncated from")  # log(50 / 32) / d


@pytest.mark.parametrize(("method", "margin"), [("amm", f"{math.log(50 / 32):.2f}"), ("avg_lin", ""), ("refined", "")])
def test_the_pull_of_a_misclassified_sample_ends_where_its_term_is_truncated(method, margin):
    assert tables.truncated_from(make_recipe("mnist", "mlp", method)) == margin


def test_figures_of_what_has_not_run_say_so(results):
    rows = compare("fig5", "short")
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
