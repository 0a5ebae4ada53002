"""The comparison of attacks, in the small: that it measures, stores and shows; not how long anything takes."""

import math

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch

from ammlib.experiments import bench, store, tightness, worth
from ammlib.report import figures
from ammlib.report import tightness as report
from ammlib.report.measurements import load
from ammlib.training.execute import run_or_load
from ammlib.training.recipes import make_recipe
from ammlib.training.studies import Job


@pytest.fixture(scope="module")
def measured():
    """The published MLPs, on a few images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tightness, "RADII", report.SHOWN_RADII)
        patch.setenv("AMMLIB_DATA", "no/such/folder")  # digits, enlarged, stand in
        return tightness.measure(["mlp"], repeats=1, samples=12, compared=5)


def test_every_published_net_is_measured(measured):
    assert list(measured["nets"]["mlp"]["methods"]) == ["reference", "amm", "elsayed", "refined"]
    for found in measured["nets"]["mlp"]["methods"].values():
        assert len(found["correct"]) == 12 and len(found["robust"]) == len(measured["radii"]) == 3
        assert all(
            0 < near <= far for near, far in zip(found["norms"]["tight"], found["norms"]["deepfool"], strict=True)
        )
        assert found["robust"][0] >= found["robust"][1]
        for attack in ("deepfool", "tight", "tight, 100 steps"):
            assert len(found["compared"]["norms"][attack]) == 5 and found["compared"]["seconds"][attack] > 0


def test_it_is_stored_and_shown(measured, tmp_path):
    store.store("tightness", measured, "how", tmp_path)
    stored = load("tightness", tmp_path)
    text = report.tightness(stored)
    assert text.count("\n") >= 9 and "tight, 100 steps" in text
    table = report.enlarged(stored)
    assert all(name in table for name in ("reference", "AMM (MIN+EXP)", "Elsayed et al.", "AMM, tight margin"))
    for draw in (figures.ratios_to_best, figures.margins_by_attack, figures.robust_accuracy):
        assert draw(stored).axes
        plt.close("all")


def test_ratios_are_to_the_least_norm_that_any_attack_found():
    norms = {"deepfool": [2.0, 3.0, None], "tight": [1.0, 3.0, 4.0]}
    compared = {"norms": norms, "seconds": {"deepfool": 2.0, "tight": 8.0}}
    found = report.ratios(compared)
    assert found["deepfool"].tolist() == [2, 1, math.inf] and found["tight"].tolist() == [1, 1, 1]
    loose, near = report.nearness(compared).values()
    assert loose == pytest.approx((2.5, 1.5, 2.0, 1, 1.0, 1.0))
    assert near == pytest.approx((8 / 3, 1.0, 1.0, 0, 1.0, 4.0))


def test_the_rank_correlation_is_spearmans():
    a, b = torch.tensor([1.0, 2, 3, 4, 5]), torch.tensor([1.0, 2, 3, 50, 4])
    assert report.rank_correlation(a, a.exp()) == pytest.approx(1)
    assert report.rank_correlation(a, -a) == pytest.approx(-1)
    assert report.rank_correlation(a, b) == pytest.approx(0.9)  # 1 - 6 (1 + 1) / (5 (25 - 1))


def test_it_is_a_part_of_the_benchmarks():
    assert "tightness" in bench.PARTS and "tightness" not in bench.DEFAULT


def test_right_and_wrong_images_are_told_apart():
    found = {"correct": [1, 0, 1], "norms": {"deepfool": [1, 2, 4], "tight": [0.5, 1, 2.5]}, "robust": [0.6, 0.3]}
    measured = {"radii": [0.1, 0.2], "nets": {"resnet20": {"methods": {"reference": found}}}}
    rows = [line.split() for line in report.right_and_wrong(measured).splitlines()]
    assert rows[1:] == [
        ["resnet20", "reference", "correct", "2", "2.500", "1.500"],
        ["resnet20", "reference", "misclassified", "1", "2.000", "1.000"],
    ]
    assert "PGD, r=0.2" in report.enlarged(measured) and "30%" in report.enlarged(measured)


def test_what_a_margin_is_worth_is_measured_of_the_nets_at_hand(monkeypatch, tmp_path):
    monkeypatch.setenv("AMMLIB_RESULTS", str(tmp_path))
    monkeypatch.setenv("AMMLIB_CHECKPOINTS", str(tmp_path))
    jobs = [Job(make_recipe("digits", "mlp", method, epochs=1, train_size=200), 0) for method in ("reference", "amm")]
    monkeypatch.setattr(worth, "study", lambda *name: jobs)
    run_or_load(*jobs[1], progress=False)
    (net,) = worth.measure(["mlp"], samples=9)["nets"].values()
    ((method, found),) = net["methods"].items()
    assert method == "amm" and len(found["correct"]) == 9 and len(found["robust"]) == len(worth.RADII)
