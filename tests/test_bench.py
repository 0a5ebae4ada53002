"""The measurements of cost, in the small: that they measure, store and show; not how long anything takes."""

import json
from dataclasses import replace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

from ammlib.cli import main
from ammlib.data.datasets import Dataset
from ammlib.experiments import bench, scaling, store
from ammlib.experiments.cost import attacks, growth, memory, nets, screening, steps
from ammlib.models.weights import weights_digest
from ammlib.report import cost, figures, measurements
from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS, load, net_label
from ammlib.training.prepare import batch_norms
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import load_run


@pytest.fixture
def digits_only(monkeypatch, tmp_path):
    """No data sets at hand: the digits, enlarged, stand in."""
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))


def tiny(arch):
    return replace(nets.CASES[arch], batch=10, warm_up=1, repeats=1)


def made_up(ratio, aim_net="mlp"):
    """A measurement of steps in which every ratio is the same."""
    same = {name: [ratio, ratio] for name in VARIANTS}
    parts = {name: dict(zip(PARTS_OF_STEP, (1.0, 2.0, 3.0, 4.0), strict=True)) for name in VARIANTS}
    net = dict(dataset="mnist", arch="mlp", images="mnist", device="cpu", batch=100, repeats=1, misclassified=0.1)
    net |= dict(plain_ms=10.0, plain_mb=5.0, time=same, memory=same, parts_ms=parts)
    return {"steps": [1, 6], "nets": {aim_net: net}}


# ---- steps


@pytest.mark.parametrize("arch", ["mlp", "resnet20"])
def test_every_variant_and_number_of_iterations_is_measured_and_shown(arch, digits_only):
    found = steps.measure_net(tiny(arch), steps=(1, 2))
    assert found["images"] == "digits, enlarged" and 0 <= found["misclassified"] <= 1
    for of in ("time", "memory"):
        assert set(found[of]) == set(VARIANTS)
        assert all(len(ratios) == 2 and min(ratios) > 0 for ratios in found[of].values())
    for name, parts in found["parts_ms"].items():
        assert sum(parts.values()) == pytest.approx(found["time"][name][-1] * found["plain_ms"])
        assert parts["trajectories"] > 0 and (parts["screening"] > 0) == (name == cost.SCREENED)
    text = cost.steps({"steps": (1, 2), "nets": {arch: found}})
    assert text.count(net_label(found)) == 1 + 3 * len(VARIANTS)


def test_marking_the_time_does_not_change_the_term(digits_only):
    net, images = nets.partly_trained(tiny("mlp"))
    x, y = images.batch(30)
    for name in VARIANTS:
        timed, usual = steps.timed(net, name, 6), net.regulariser(name)
        torch.testing.assert_close(timed(net.model, x, y), usual(net.model, x, y), rtol=0, atol=0)


def test_steps_that_are_measured_leave_the_weights_alone(digits_only):
    net, images = nets.partly_trained(tiny("mlp"))
    before = [parameter.clone() for parameter in net.parameters]
    net.step(*images.batch(10), net.regulariser(cost.SCREENED))
    assert all(map(torch.equal, net.parameters, before))


def test_a_net_that_is_fine_tuned_starts_from_its_reference_on_the_images_of_that(tmp_path, monkeypatch):
    (tmp_path / "cifar10.npz").touch()
    images, labels = torch.randint(256, (6000, 3, 32, 32), dtype=torch.uint8), torch.arange(6000) % 10
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path))
    monkeypatch.setattr(nets, "load_data", lambda name: Dataset(name, images, labels, images, labels, 10))
    net, found = nets.partly_trained(nets.CASES["resnet20"])
    reference = make_recipe("cifar10", "resnet20", "reference", "short")
    assert weights_digest(net.model.state_dict()) == load_run(reference, 0).weights
    assert len(found.data.y_train) == reference.train_size
    assert not any(norm.training for norm in batch_norms(net.model))


def test_the_resident_size_is_read_in_bytes():
    assert 10e6 < memory.resident() < 1.01 * memory.peak_resident() < 1e12  # the two are counted separately


# ---- growth


def test_growth_measures_what_varies(digits_only, monkeypatch):
    monkeypatch.setitem(nets.CASES, "mlp", tiny("mlp"))
    values = {"batch": (5, 10), "classes": (10, 20), "misclassified": (0.5, 1.0), "u": (1, 2)}
    found = growth.measure(["mlp"], repeats=1, values=values)
    assert set(found["nets"]["mlp"]) == set(values)
    for times in found["nets"]["mlp"].values():
        assert set(times) == {"plain", *VARIANTS} and all(len(t) == 2 and min(t) > 0 for t in times.values())
    assert len(cost.growth(found).splitlines()) == 1 + len(values)


@pytest.mark.parametrize("p", [0.0, 0.5, 2.0])
def test_the_exponent_of_a_power_law_is_its_exponent(p):
    values = np.array([25, 50, 400])
    assert cost.exponent(values, 3 * values**p) == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_labels_make_the_wanted_share_misclassified(share):
    model, x = nn.Linear(4, 3), torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    wrong = model(x).argmax(1) != growth.labelled(model, x, share)
    assert wrong.float().mean() == share


# ---- screening


def test_screening_is_compared_along_a_run_that_is_stored_once(own_folders):
    found = screening.measure(["mlp"], repeats=7, dataset="digits", epochs=1)
    net = found["nets"]["mlp"]
    assert net["step"] == [0, 7, 14] and all(f <= e for f, e in zip(net["found"], net["exact"], strict=True))
    recipe = cost.screened_and_exact("digits", "mlp", epochs=1)["exact"]
    run = load_run(recipe, 0)
    assert recipe.regulariser["screen"] is None and run.metrics["error"] == cost.screening_summary(net)["error, exact"]
    screening.measure(["mlp"], repeats=20, dataset="digits", epochs=1)
    assert load_run(recipe, 0).seconds == run.seconds
    assert "not run" in cost.screening(found)  # the screened one


# ---- DeepFool


def test_attacks_at_hand_are_compared_on_the_same_images(digits_only):
    found = attacks.measure(["mlp"], samples=5, repeats=1)["nets"]["mlp"]
    assert list(found["seconds"]) == ["trainable", "frozen"]
    for seconds in found["seconds"].values():
        assert set(seconds) == set(attacks.at_hand()) >= {"ammlib"} and min(seconds.values()) > 0
    assert found["mean_norm"] == pytest.approx(
        dict.fromkeys(found["mean_norm"], found["mean_norm"]["ammlib"]), rel=0.02
    )


def test_others_that_are_not_installed_are_named(digits_only, monkeypatch):
    monkeypatch.setattr(attacks, "at_hand", lambda: ["ammlib"])
    found = attacks.measure(["mlp"], samples=2, repeats=1)
    assert "not installed: adv_lib, foolbox" in cost.deepfool(found)


def test_a_widened_model_is_the_same_model():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    z = (x - attacks.LOW) / (attacks.HIGH - attacks.LOW)
    torch.testing.assert_close(attacks.Widened(model)(z), model(x))


# ---- files


def test_a_file_says_how_it_was_made_and_gives_back_what_was_measured(tmp_path):
    store.store("steps", made_up(1.23456789), "how\n  it was done", tmp_path)
    found = load("steps", tmp_path)
    assert found["method"] == "how it was done" and "cores" in found["machine"] and "torch" in found["versions"]
    assert found["nets"]["mlp"]["time"][cost.SCREENED] == [1.2346, 1.2346]


def test_nets_measured_alike_stay_and_others_go(tmp_path):
    for net in ("mlp", "lenet"):
        store.store("steps", made_up(2.0, net), "one way", tmp_path)
    assert list(load("steps", tmp_path)["nets"]) == ["mlp", "lenet"]
    store.store("steps", made_up(2.0, "mlp"), "another way", tmp_path)
    assert list(load("steps", tmp_path)["nets"]) == ["mlp"]


@pytest.mark.parametrize(
    ("before", "kept"), [({"foolbox": "3.3.4"}, ["mlp", "lenet"]), ({"torch": "2.6.0"}, ["lenet"])]
)
def test_a_package_that_is_missing_now_is_no_other_version(before, kept, tmp_path, monkeypatch):
    now = {"torch": "2.13.0"}
    monkeypatch.setattr(store, "versions", lambda: now | before)
    store.store("steps", made_up(2.0, "mlp"), "one way", tmp_path)
    monkeypatch.setattr(store, "versions", lambda: now)
    store.store("steps", made_up(2.0, "lenet"), "one way", tmp_path)
    assert list(load("steps", tmp_path)["nets"]) == kept and load("steps", tmp_path)["versions"] == now | before | now


def test_without_measurements_of_ones_own_those_of_the_checkout_are_shown(tmp_path, own_folders):
    assert "resnet20" in load("growth", tmp_path)["nets"]


def test_a_missing_file_says_how_to_make_it(tmp_path, own_folders, monkeypatch):
    monkeypatch.setattr(measurements, "stored_results", lambda: tmp_path / "results")
    with pytest.raises(FileNotFoundError, match="python -m ammlib bench --parts growth"):
        load("growth", tmp_path)


def test_the_command_measures_stores_and_prints(digits_only, tmp_path, capsys):
    assert main(["bench", "--parts", "deepfool", "--arch", "mlp", "--repeats", "1", "--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "deepfool.json").read_text())["nets"]["mlp"]["repeats"] == 1
    assert "DeepFool of" in capsys.readouterr().out


def test_an_unknown_part_or_net_is_named_before_any_work(tmp_path):
    for given in (dict(parts=["stpes"]), dict(archs=["mpl"])):
        with pytest.raises(ValueError, match="choose from"):
            bench.run(**given, folder=tmp_path)
    assert not list(tmp_path.iterdir())


# ---- what is shown


@pytest.mark.parametrize(("ratio", "time", "memory"), [(1.0, "below", "below"), (6.0, "within", "above")])
def test_the_verdict_places_the_ratios_beside_the_papers(ratio, time, memory):
    lines = cost.paper_ranges(made_up(ratio)).splitlines()[1:]
    assert [line.endswith(f"{time if i < 3 else memory} on 1 of 1 nets") for i, line in enumerate(lines)] == [True] * 6


def test_a_step_on_several_processes_is_stored_and_shown_beside_one(tmp_path, monkeypatch, capsys):
    times = {"reference": {1: 10.0, 2: 20.0}, "amm": {1: 30.0, 2: 15.0}}
    monkeypatch.setattr(scaling, "job", lambda processes, arch, method, steps: times[method][processes])
    assert main(["scaling", "--output", str(tmp_path)]) == 0
    found = load("scaling", tmp_path)
    both = {"reference": [10, 20], "amm": [30, 15]}
    assert found["nets"] == {"mlp": both, "lenet": both} and found["processes"] == [1, 2]
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1].split() == ["lenet", "amm", "30.0", "ms", "15.0", "ms", "2.00x"] and "2 processes" in lines[1]


def test_aims_are_met_or_not():
    seconds = {"trainable": {"ammlib": 1.0, "foolbox": 6.0}, "frozen": {"ammlib": 1.0, "foolbox": 4.0}}
    speeds = {"nets": {"mlp": {"seconds": seconds}}}
    met = [line.split()[-1] for line in cost.aims(made_up(2.0), speeds).splitlines()[1:]]
    assert met == ["yes", "yes", "yes", "no", "yes", "no"]  # time of three variants, memory, two speeds


def test_the_figures_show_the_stored_numbers():
    stored = {part: load(part) for part in ("steps", "growth", "deepfool", "screening")}
    figure = figures.cost_ratios(stored["steps"])
    net = next(iter(stored["steps"]["nets"].values()))  # that of the first column
    drawn = [list(line.get_ydata()) for line in figure.axes[0].lines]
    assert all(net["time"][name] in drawn for name in VARIANTS)
    bars = figures.cost_parts(stored["steps"]).axes[0].patches
    assert len(bars) == len(stored["steps"]["nets"]) * len(VARIANTS) * len(PARTS_OF_STEP)
    assert len(figures.cost_growth(stored["growth"]).axes) == 8
    assert len(figures.attack_times(stored["deepfool"]).axes) == len(stored["deepfool"]["nets"])
    assert len(figures.screening_course(stored["screening"]["nets"]["mlp"]).axes) == 3
    plt.close("all")
