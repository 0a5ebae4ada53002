"""Facts about what a notebook gets: the runs and nets that are stored, and the others when asked for."""

from dataclasses import replace

import pytest
from made_up import finished, store

from ammlib.report.frame import compare
from ammlib.report.notebook import nets_at_hand, stored_runs, study_runs
from ammlib.training import execute, runs
from ammlib.training.execute import run_or_load
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import store_run
from ammlib.training.studies import study


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
