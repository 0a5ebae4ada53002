"""Facts about stored runs: one file for each recipe and seed, never torn, and used for exactly this recipe."""

import json
import math
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trainings import tiny

from ammlib.data.batches import subset
from ammlib.data.datasets import load_data
from ammlib.margin.margins import margins
from ammlib.models.weights import load_weights, save_weights, weights_digest
from ammlib.report import frame
from ammlib.training import execute, runs
from ammlib.training.device import best_device
from ammlib.training.evaluate import error_rate
from ammlib.training.execute import margin_rows, run_or_load, trained_model
from ammlib.training.prepare import new_model
from ammlib.training.recipes import Recipe, make_recipe, reference_of
from ammlib.training.runs import Run, checkpoint_path, load_run, run_path, store_run, weights_path

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["ammlib.cli", "sklearn.datasets", "torch._dynamo", "pytest"])


pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr(execute, "train", lambda *_, **__: pytest.fail("trained, though the run is stored"))


def fake_run(seed=0, **changes):
    values = {"metrics": {"error": 1.5, "margin": 0.1}, "history": [{"loss": 0.3}] * 40, "train_images": 60}
    values |= {"weights": "", "versions": {}, "device": "cpu", "seconds": 0.1}
    return Run(recipe=tiny(), seed=seed, **{**values, **changes})


def files(root):
    return [path for path in Path(root).rglob("*") if path.is_file()]


# ---- many writers


def write_200(results, seeds, barrier):
    os.environ["AMMLIB_RESULTS"] = str(results)
    barrier.wait()
    for seed in seeds:
        store_run(fake_run(seed))


@pytest.mark.parametrize("seeds", [(range(200), range(200, 400)), (range(200), range(200))], ids=["own", "shared"])
def test_of_two_processes_that_write_200_runs_each_none_is_lost_and_none_torn(seeds, tmp_path):
    results, barrier = tmp_path / "results", processes.Barrier(3, timeout=60)
    writers = [processes.Process(target=write_200, args=(results, part, barrier)) for part in seeds]
    for writer in writers:
        writer.start()
    barrier.wait()
    while any(writer.is_alive() for writer in writers):
        for path in results.rglob("*.json"):
            json.loads(path.read_text())  # whole at every moment
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    expected = {run_path(tiny(), seed) for part in seeds for seed in part}
    assert set(files(results)) == expected
    assert all(load_run(tiny(), seed) == fake_run(seed) for part in seeds for seed in part)


# ---- the run file


def test_a_run_file_says_all_about_its_run():
    recipe = tiny()
    run = run_or_load(recipe, 3, progress=False)

    def no_constants(name):
        raise AssertionError(f"{name} is not JSON")

    stored = json.loads(run_path(recipe, 3).read_text(), parse_constant=no_constants)
    assert Recipe.from_dict(stored["recipe"]) == recipe and stored["recipe"]["source"] == recipe.source
    assert (stored["seed"], stored["train_images"], stored["device"]) == (3, 60, best_device().type)
    assert set(stored["versions"]) == {"python", "torch", "ammlib"} and stored["versions"]["torch"] == torch.__version__
    assert [row["epoch"] for row in stored["history"]] == [1, 2]
    assert set(stored["history"][0]) == {
        *("epoch", "lr", "loss", "train_error", "regulariser", "kept", "kept_margin", "test_error", "test_margin")
    }
    quantiles = {"margin_median", "margin_q05", "margin_q25", "margin_q75", "margin_q95"}
    assert set(stored["metrics"]) == {"error", "test_images", "margin", "margin_samples", "margin_success"} | quantiles
    assert stored["seconds"] >= 0
    assert load_run(recipe, 3) == run


def test_metrics_are_those_of_the_stored_weights():
    recipe = tiny(margin_size=50)
    run, data, model = run_or_load(recipe, 0, progress=False), load_data("digits"), trained_model(recipe, 0)
    assert not model.training
    assert run.weights == weights_digest(model.state_dict()) == weights_digest(load_weights(weights_path(recipe, 0)))
    assert run.metrics["error"] == run.history[-1]["test_error"] == error_rate(model, data.x_test, data.y_test)
    rows = subset(len(data.x_test), 50, seed=0)
    summary = margins(model, data.x_test[rows].float() / 255, progress=False).summary()
    assert summary.pop("mean") == run.metrics["margin"] and summary["samples"] == 50
    assert run.metrics.items() >= {f"margin_{name}": value for name, value in summary.items()}.items()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_is_not_stored(value, tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        store_run(fake_run(metrics={"error": value}))
    assert not files(tmp_path)


def test_a_damaged_run_file_is_an_error_that_names_it():
    path = store_run(fake_run())
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        run_or_load(tiny(), 0, progress=False)


@pytest.mark.parametrize("metrics", ["{}", '{"error": NaN, "margin": 1.0}', '{"error": 1.0, "margin": null}', "[]"])
def test_a_run_file_without_finite_metrics_is_named_in_one_line(metrics, refused):
    path = run_path(tiny("reference"), 0)
    run = run_or_load(tiny("reference"), 0, progress=False)
    path.write_text(run.to_json().replace(json.dumps(run.metrics, indent=1).replace("\n", "\n "), metrics))
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        load_run(tiny("reference"), 0)
    refused("train --dataset digits --method reference --set epochs=2 train_size=60 batch=20", path, "delete it")


@pytest.mark.parametrize(
    "change", [{"recipe": None}, {"recipe": [1]}, {"weights": None}, {"history": None}, {"history": [1]}, {"data": 3}]
)
def test_a_run_file_with_a_field_of_another_kind_is_named_in_one_line(change, refused):
    run, path = run_or_load(tiny("reference"), 0, progress=False), run_path(tiny("reference"), 0)
    path.write_text(json.dumps(json.loads(run.to_json()) | change))
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        frame.history()
    refused("train --dataset digits --method reference --set epochs=2 train_size=60 batch=20", path, "delete it")


def test_a_run_file_of_brackets_is_named(tmp_path):
    path = run_path(tiny(), 0)
    path.parent.mkdir(parents=True)
    path.write_text("[" * 10**5)
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        load_run(tiny(), 0)


def test_folders_are_the_environments_or_the_checkouts(tmp_path, monkeypatch):
    assert run_path(tiny(), 5).relative_to(tmp_path).as_posix() == (
        f"results/runs/digits/mlp/amm/full-{tiny().digest}-s5.json"
    )
    monkeypatch.delenv("AMMLIB_RESULTS")
    monkeypatch.setenv("AMMLIB_CHECKPOINTS", "")
    checkout = Path(__file__).resolve().parents[1]
    assert (runs.results_root(), runs.checkpoints_root()) == (checkout / "results", checkout / "checkpoints")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AMMLIB_RESULTS", "~/results")
    monkeypatch.setenv("AMMLIB_CHECKPOINTS", "~/checkpoints")
    assert run_path(tiny(), 0).is_relative_to(tmp_path / "results")
    assert checkpoint_path(tiny(), 0).is_relative_to(tmp_path / "checkpoints")


# ---- run or load


def test_a_stored_run_is_used(no_training):
    store_run(fake_run(0))
    assert run_or_load(tiny(), 0) == fake_run(0)
    with pytest.raises(pytest.fail.Exception):
        run_or_load(tiny(), 1)


def test_another_recipe_or_seed_is_another_run():
    first = run_or_load(tiny(), 0, progress=False)
    others = [run_or_load(recipe, seed, progress=False) for recipe, seed in ((tiny(lr=0.1), 0), (tiny(), 1))]
    paths = {run_path(run.recipe, run.seed) for run in (first, *others)}
    assert len(paths) == 3 and all(path.exists() for path in paths)
    assert len({run.weights for run in (first, *others)}) == 3
    assert load_run(tiny(), 0) == first


@pytest.mark.parametrize("other", [fake_run(seed=1), replace(fake_run(), recipe=tiny(lr=0.5))], ids=["seed", "recipe"])
def test_a_file_whose_content_is_another_runs_is_not_used(other):
    run_path(tiny(), 0).parent.mkdir(parents=True)
    run_path(tiny(), 0).write_text(other.to_json())
    assert load_run(tiny(), 0) is None
    assert run_or_load(tiny(), 0, progress=False).metrics["error"] != 1.5


def test_the_source_of_a_recipe_does_not_matter(no_training):
    store_run(fake_run())
    assert run_or_load(replace(tiny(), source="elsewhere"), 0) == fake_run()


def test_force_trains_again_to_the_bit_identical_result():
    first = run_or_load(tiny(), 0, progress=False)
    weights = weights_path(tiny(), 0).read_bytes()
    store_run(replace(first, metrics={"error": 50.0}))
    weights_path(tiny(), 0).write_bytes(b"")
    again = run_or_load(tiny(), 0, force=True, progress=False)
    times = dict(seconds=0.0, wall_seconds=None, cpu_seconds=None)
    assert replace(again, **times) == replace(first, **times)
    assert load_run(tiny(), 0) == again and weights_path(tiny(), 0).read_bytes() == weights


def test_a_finished_run_leaves_its_file_and_its_weights_alone(tmp_path):
    run_or_load(tiny(), 0, progress=False)
    assert set(files(tmp_path)) == {run_path(tiny(), 0), weights_path(tiny(), 0)}
    assert not checkpoint_path(tiny(), 0).exists()


def test_own_images_may_be_fewer_than_the_margins_that_a_recipe_asks_for():
    own = make_recipe("mine", "mlp", "amm", "short", "digits", margin_size=1000)
    assert margin_rows(own, load_data("digits")).tolist() == list(range(360))


def test_an_impossible_margin_size_is_refused_before_training(no_training):
    with pytest.raises(ValueError, match="360"):
        run_or_load(tiny(margin_size=1000), 0, progress=False)


# ---- weights


def test_a_model_whose_weights_are_missing_is_trained():
    run = run_or_load(tiny(), 0, progress=False)
    weights_path(tiny(), 0).unlink()
    assert weights_digest(trained_model(tiny(), 0, progress=False).state_dict()) == run.weights


def test_published_weights_come_first(tmp_path, no_training):
    own, published = (new_model(tiny(), seed).state_dict() for seed in (0, 1))
    save_weights(weights_path(tiny(), 0), own)
    assert weights_digest(trained_model(tiny(), 0).state_dict()) == weights_digest(own)
    name = f"digits-mlp-amm-full-{tiny().digest}-s0.safetensors"
    save_weights(tmp_path / "results" / "weights" / name, published)
    assert weights_digest(trained_model(tiny(), 0).state_dict()) == weights_digest(published)


def test_fine_tuning_starts_from_the_reference_trained_first_if_missing():
    recipe = tiny("deep_defense", epochs=0)
    reference = reference_of(recipe)
    assert reference.train_size == 60 and not run_path(reference, 2).exists()
    untrained = run_or_load(recipe, 2, progress=False)
    assert load_run(reference, 2).weights == untrained.weights  # no epoch changed the weights it started from
    tuned = run_or_load(recipe.with_(epochs=1), 2, progress=False)
    assert tuned.weights != untrained.weights
    assert tuned.history[0]["train_error"] < 50 and tuned.history[0]["lr"] == 5e-4


def test_fine_tuning_uses_the_stored_reference():
    recipe = tiny("deep_defense", epochs=0)
    weights = new_model(recipe, seed=9).state_dict()
    save_weights(weights_path(reference_of(recipe), 0), weights)
    assert run_or_load(recipe, 0, progress=False).weights == weights_digest(weights)
    assert not run_path(reference_of(recipe), 0).exists()
