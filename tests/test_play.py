"""Facts about the pictures to play with: what the controls say is what is drawn, in one place."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch
from ipywidgets import Dropdown, IntSlider

from ammlib import deepfool, make_model
from ammlib.experiments import linear, play
from ammlib.report import figures
from ammlib.report.measurements import load


@pytest.fixture
def shown(monkeypatch):
    """What `display` was given, and what the picture was replaced by."""
    outputs = []

    class Place:
        def update(self, figure):
            outputs.append(figure)

    monkeypatch.setattr(play, "display", lambda given, **how: outputs.append(given) or Place())
    return outputs


def test_a_change_of_a_control_draws_anew_and_leaves_no_figure_open(shown):
    asked = []
    controls = {"c": IntSlider(1, 0, 9), "kind": Dropdown(options=["a", "b"])}
    play.live(lambda **values: asked.append(values) or plt.figure(), **controls)
    controls["c"].value, controls["kind"].value = 4, "b"
    assert asked == [{"c": 1, "kind": "a"}, {"c": 4, "kind": "a"}, {"c": 4, "kind": "b"}]
    controls_shown, *pictures = shown
    assert "live kernel" in controls_shown["text/plain"] and len(controls_shown) == 2
    assert len(pictures) == 3 and not plt.get_fignums()


def test_an_image_is_pushed_until_the_prediction_changes():
    torch.manual_seed(0)
    models, x = {"reference": make_model("digits", "mlp"), "amm": make_model("digits", "mlp")}, torch.rand(1, 8, 8)
    *_, curves = figures.pushed(models, x).axes
    for method, model in models.items():
        margin = float(deepfool(model, x.unsqueeze(0)).norm)
        way, dots = [line for line in curves.lines if line.get_color() == figures.COLOURS[method]]
        assert dots.get_xdata()[0] == 0 and dots.get_xdata()[-1] == pytest.approx(margin)
        assert dots.get_ydata()[0] > 0 > dots.get_ydata()[-1]  # DeepFool ends on the other side
        assert all((way.get_ydata() < 0) == (way.get_xdata() > margin / 1.02 - 1e-3)) or len(dots.get_xdata()) > 2
    plt.close("all")


def test_an_outlier_turns_avg_lin_and_leaves_min_lin_on_the_svm(shown):
    x, y = linear.two_classes(20, seed=0)
    svm, _ = linear.hard_margin_svm(x, y)
    play.outlier(x, y, svm, farthest=100)
    title = shown[-1].axes[0].get_title()
    assert "MIN+LIN 0° from the SVM" in title and int(title.split("AVG+LIN ")[1].split("°")[0]) > 10


def test_pgd_shows_what_the_nets_say_and_how_many_images_stand(shown):
    measured = load("tightness")
    play.radius(measured)
    first, *rows = shown[-1].axes
    assert len(first.texts) == 8 and all(text.get_color() == "black" for text in first.texts)
    for row, found in zip(rows, measured["nets"]["mlp"]["methods"].values(), strict=True):
        assert f"{found['robust'][measured['radii'].index(1.0)]:.0%} of 1,000 stand" in row.get_ylabel()
