"""Facts about the tables of paper versus ours."""

import math
import re
from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest
from made_up import finished, lines, store

from ammlib.report import tables
from ammlib.report.frame import compare
from ammlib.report.notebook import stored_runs
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import store_run
from ammlib.training.studies import study

# ---- paper beside ours


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
    cells = re.findall(r'<td style="white-space: (\w+);[^>]*>(.*?)</td', html)
    assert " id=" not in html and len(cells) == html.count("<td")
    assert {text for space, text in cells if space != "nowrap"} == {
        "short: 20 epochs, all images",
        "short: 10 epochs, 5,000 images",
        "short: 10 + 10 epochs, 5,000 images",
    }


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


# ---- settings, searches, courses


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
