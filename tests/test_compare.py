"""Facts about paper beside ours: which runs stand beside a published number, and how far they are from it."""

import math

import pandas as pd
import pytest
from made_up import finished, lines, store

from ammlib.report import tables
from ammlib.report.frame import compare, distance, extent, jobs_behind, same_direction
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import store_run
from ammlib.training.studies import study


def row(rows, method, metric="error", condition="", scale="short"):
    place = (rows.method == method) & (rows.metric == metric) & (rows.condition == condition) & (rows.scale == scale)
    (found,) = rows[place].itertuples()
    return found


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
