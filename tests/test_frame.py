"""Facts about the frames: published numbers, and a row for each stored run; a damaged file is named."""

from dataclasses import replace

import pytest
from made_up import finished, store

import ammlib
from ammlib.report import frame
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import store_run


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


@pytest.mark.parametrize("content", ["", "source,dataset\n"])
def test_an_emptied_table_of_published_numbers_is_named(content, tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "stored_results", lambda: tmp_path)
    (tmp_path / "paper.csv").write_text(content)
    with pytest.raises(ValueError, match=f"{tmp_path / 'paper.csv'} is damaged: no"):
        frame.published()
