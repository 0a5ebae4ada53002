"""Facts about the tables of paper versus ours."""

import shutil
from dataclasses import replace

import pytest

from ammlib import tables
from ammlib.files import home
from ammlib.recipes import make_recipe, study
from ammlib.runs import Run, store_run


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A results folder with the published numbers and no runs."""
    monkeypatch.setenv("AMMLIB_RESULTS", str(tmp_path))
    shutil.copy(home() / "results" / "paper.csv", tmp_path)


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
    limit = row(fig5, "amm", "error", "noisy=55000")
    assert (limit.paper.bound, limit.paper.value) == ("<", 10)
    assert tables.same_direction(replace(limit, values=(9.0,)), None) is True
    assert tables.same_direction(replace(limit, values=(11.0,)), None) is False


def test_text_and_markdown_hold_the_same_cells(results):
    rows = tables.compare("table3", "short")
    text, markdown = tables.as_text(rows), tables.as_markdown(rows)
    assert len(text.splitlines()) == len(rows) + 1
    assert len(markdown.splitlines()) == len(rows) + 2
    assert "not run" in text
    assert all(cell in markdown for cell in rows[0].cells())
