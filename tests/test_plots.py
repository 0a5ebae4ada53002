"""Facts about the figures: they are written alike each time, and show the numbers they are given."""

from dataclasses import replace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from torch import nn

from ammlib import deepfool, make_model
from ammlib.margin.margins import Margins
from ammlib.methods.registry import METHODS
from ammlib.report import figures, style
from ammlib.report.frame import compare
from ammlib.training.recipes import label, make_recipe
from ammlib.training.runs import Run


@pytest.fixture
def axes():
    _, axes = plt.subplots()
    yield axes
    plt.close("all")


def run(method, seed=0, error=1.0, history=(), **settings):
    """A finished run on MNIST with the given test error, and test errors by epoch."""
    return Run(
        recipe=make_recipe("mnist", "mlp", method, "short", **settings),
        seed=seed,
        metrics={"error": error, "margin": 1.0},
        history=[{"epoch": epoch, "test_error": value} for epoch, value in enumerate(history, 1)],
        train_images=1,
        weights="",
        versions={},
        device="cpu",
        seconds=0.0,
    )


def measured(*norms):
    norm = torch.tensor(norms)
    return Margins(norm, success=norm > 0, steps=torch.ones(len(norm)), correct=None)


def line(axes, method):
    """The drawn line of a method."""
    colour = to_rgb(figures.COLOURS[method])
    (found,) = [line for line in axes.lines if len(line.get_xdata()) > 1 and to_rgb(line.get_color()) == colour]
    return found


def shaded(collection, x):
    """Lower and upper end of the shade at x."""
    vertices = collection.get_paths()[0].vertices
    heights = vertices[np.isclose(vertices[:, 0], x), 1]
    return heights.min(), heights.max()


# ---- files and style


def test_save_writes_pdf_and_png_with_the_same_bytes_each_time(tmp_path, monkeypatch):
    written = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        monkeypatch.setenv("AMMLIB_FIGURES", str(folder))
        figure, axes = plt.subplots()
        axes.plot([1, 2], [3, 4], label="λ")
        axes.legend()
        figures.save(figure, "lines")
        plt.close(figure)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert set(written[0]) == {"lines.pdf", "lines.png"}
    assert written[0]["lines.pdf"].startswith(b"%PDF") and written[0]["lines.png"].startswith(b"\x89PNG")
    assert written[0] == written[1]


def test_every_method_has_a_look_of_its_own():
    looks = {method: figures.style_of(method) for method in METHODS}
    assert len({(look["color"], look["linestyle"]) for look in looks.values()}) == len(METHODS)
    assert {look["label"] for look in looks.values()} == {label(method) for method in METHODS}


def test_a_colour_has_one_meaning():
    dashed = {figures.COLOURS[method] for method in style.DASHED}  # AVG has the colour of MIN
    solid = [colour for method, colour in figures.COLOURS.items() if method not in style.DASHED]
    every = [*solid, *figures.CLASSES, *style.ATTACKS.values()]
    assert len(set(every)) == len(every) and dashed <= set(solid)


def test_a_method_has_the_same_colour_in_every_figure(axes):
    _, others = plt.subplots(1, 2)
    runs = [run("amm", history=(2.0, 1.0))]
    figures.convergence(axes, runs)
    figures.sweep(others[0], runs, "train_size", 60_000)
    figures.margin_histogram(others[1], {"amm": measured(0.5, 1.0)})
    outline = others[1].collections[0].get_edgecolor()[0]
    drawn = [
        line(axes, "amm").get_color(),
        axes.collections[0].get_facecolor()[0],
        others[0].lines[0].get_color(),
        outline,
    ]
    assert {to_rgb(colour) for colour in drawn} == {to_rgb(figures.COLOURS["amm"])}


# ---- lines


def test_convergence_shows_the_mean_over_the_seeds_and_their_range(axes):
    runs = [run("amm", 0, history=(4.0, 2.0)), run("amm", 1, history=(2.0, 1.0)), run("reference", history=(5.0, 3.0))]
    figures.convergence(axes, runs)
    np.testing.assert_allclose(line(axes, "amm").get_xydata(), [(1, 3.0), (2, 1.5)])
    np.testing.assert_allclose(line(axes, "reference").get_xydata(), [(1, 5.0), (2, 3.0)])
    assert shaded(axes.collections[0], 1) == (2.0, 4.0)
    assert shaded(axes.collections[0], 2) == (1.0, 2.0)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "test error (%)")
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {label("amm"), label("reference")}


def test_sweep_shows_mean_and_standard_deviation_in_order_of_what_varies(axes):
    runs = [
        run("amm", 0, error=1.0),  # train_size None: all images
        run("amm", 1, error=3.0),
        run("amm", 0, error=6.0, train_size=5000),
    ]
    figures.sweep(axes, runs, "train_size", 60_000)
    np.testing.assert_allclose(line(axes, "amm").get_xydata(), [(5000, 6.0), (60_000, 2.0)])
    np.testing.assert_allclose(shaded(axes.collections[0], 60_000), (2 - 2**0.5, 2 + 2**0.5))  # with n - 1 = 1


def test_sweep_joins_no_runs_of_different_scales(axes):
    runs = [run("amm", error=error, train_size=size) for error, size in ((6.0, 5000), (4.0, 10_000))]
    full = replace(run("amm", error=1.0), recipe=make_recipe("mnist", "mlp", "amm", "full"))
    figures.sweep(axes, [*runs, full], "train_size", 60_000)
    drawn = {line.get_linestyle(): line.get_xdata().tolist() for line in axes.lines if len(line.get_xdata())}
    assert drawn == {"-": [60_000], ":": [5000, 10_000]}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [label("amm"), "short scale"]


def test_convergence_tells_short_curves_from_full_ones(axes):
    full = replace(run("reference", history=(5.0, 3.0)), recipe=make_recipe("mnist", "mlp", "reference", "full"))
    figures.convergence(axes, [full, run("amm", history=(4.0, 2.0)), run("avg_exp", history=(4.0, 2.0))])
    drawn = {line.get_label(): line.get_linestyle() for line in axes.get_legend().get_lines()}
    assert drawn == {label("reference"): "-", label("amm"): ":", label("avg_exp"): "-.", "short scale": ":"}


@pytest.mark.filterwarnings("error")
def test_what_a_method_does_not_have_is_not_drawn_and_short_curves_stay_dotted(axes):
    full = replace(run("reference", history=(5.0, 3.0)), recipe=make_recipe("mnist", "mlp", "reference", "full"))
    full.history[:] = [{**entry, "kept": None} for entry in full.history]
    figures.convergence(axes, [full], "kept")
    assert not axes.lines
    short = run("amm", history=(4.0, 2.0))
    short.history[:] = [{**entry, "kept": 8.0} for entry in short.history]
    figures.convergence(axes, [full, short], "kept")
    assert [line.get_linestyle() for line in axes.lines if len(line.get_xdata())] == [":"]


@pytest.mark.parametrize(("errors", "scale"), [((9.0, 8.0), "linear"), ((9.0, 1.0), "log")])
def test_errors_that_hardly_change_have_a_linear_axis_with_numbers(axes, errors, scale):
    figures.convergence(axes, [run("amm", history=errors)])
    assert axes.get_yscale() == scale


def test_a_search_shows_every_cell_frames_the_choice_and_has_no_empty_panel():
    cells = [(lam, c, 1.0) for lam in (1, 2) for c in (3, 4)] + [(1, 3, 0.5)]
    runs = [run("amm", error=float(i), lam=lam, c=c, d=d) for i, (lam, c, d) in enumerate(cells, 1)]
    grid, column = figures.grid_search(runs, {"lam": 1, "c": 3, "d": 1.0}).axes
    assert sorted(text.get_text() for text in grid.texts) == ["1.00", "2.00", "3.00", "4.00"]
    assert [text.get_text() for text in column.texts] == ["1.00", "5.00"]  # by d, from above
    assert (grid.get_title(), column.get_title(), column.get_ylabel()) == ("d = 1", "c = 3", "d")
    assert [text.get_text() for text in grid.texts if text.get_weight() == "bold"] == ["1.00"]
    assert [patch.get_xy() for patch in grid.patches] == [(0, 1)] and not column.patches


# ---- margins


def test_histogram_counts_every_image_and_names_the_means(axes):
    small, large = measured(*np.linspace(0, 1, 100)), measured(*np.linspace(0.5, 2.5, 299), 1000.0)
    figures.margin_histogram(axes, {"reference": small, "amm": large}, units="pixels")
    for outline, count in zip(axes.collections, (300, 100), strict=True):
        x, height = outline.get_paths()[0].vertices.T
        assert x.max() < 3  # one that lies far away does not squeeze the others
        area = abs(np.sum(x * np.roll(height, 1) - height * np.roll(x, 1))) / 2
        assert area / np.diff(np.unique(x))[0] == pytest.approx(count)
    means = [f"{float(m.norm.mean()):.2f}" for m in (small, large)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        f"{label('reference')}, mean {means[0]}",
        f"{label('amm')}, mean {means[1]}",
    ]
    assert "pixels" in axes.get_xlabel()


def test_gallery_shows_images_perturbations_sums_and_predictions():
    torch.manual_seed(0)
    models = {"reference": make_model("digits", "mlp"), "amm": make_model("digits", "mlp")}
    x = torch.rand(2, 1, 8, 8)
    grid = np.array(figures.gallery(models, x).axes[:10]).reshape(5, 2)
    for row, model in ((1, models["reference"]), (3, models["amm"])):
        found = deepfool(model, x)
        after = model(x + found.delta).argmax(1)
        for i in range(2):
            image, delta, total = (ax.images[0] for ax in (grid[0, i], grid[row, i], grid[row + 1, i]))
            np.testing.assert_array_equal(image.get_array(), x[i, 0])
            np.testing.assert_array_equal(delta.get_array(), found.delta[i, 0])
            np.testing.assert_array_equal(total.get_array(), (x + found.delta).clamp(0, 1)[i, 0])
            assert grid[row, i].get_title() == f"{found.norm[i]:.2f}"
            assert grid[row + 1, i].get_title() == f"{found.prediction[i]} → {after[i]}"
    assert len({ax.images[0].get_clim() for ax in [*grid[1], *grid[3]]}) == 1  # perturbations compare by colour
    plt.close("all")


def test_gallery_takes_colour_images_class_names_and_a_single_logit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(12, 1)).train()
    x = torch.rand(2, 3, 2, 2)
    *grid, bar = figures.gallery({"amm": model}, x, names=("cat", "dog")).axes
    assert model.training
    for i, before in enumerate(deepfool(model, x).prediction):
        assert grid[4 + i].get_title() == ("dog → cat" if before else "cat → dog")
        assert grid[i].images[0].get_array().shape == (2, 2, 3)
        assert grid[2 + i].images[0].get_array().shape == (2, 2)  # mean over the channels
    assert "pixel" in bar.get_ylabel()
    plt.close("all")


def test_boundary_is_where_the_logit_changes_its_sign(axes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[2.0, 1.0]]))
        model[1].bias.fill_(-0.5)
    x, y = torch.randn(40, 2, 1, 1, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    figures.boundary(axes, model, x, y, "title")
    red = [c for c in axes.collections if len(c.get_edgecolor()) and to_rgb(c.get_edgecolor()[0]) == (1, 0, 0)]
    (path,) = red[0].get_paths()
    np.testing.assert_allclose(path.vertices @ [2, 1], 0.5, atol=1e-4)
    points = [c.get_offsets() for c in axes.collections if len(c.get_offsets()) == 20]
    for label_, found in enumerate(points):
        np.testing.assert_allclose(found, x.flatten(1)[y == label_], rtol=1e-6)
    assert (len(red), len(points), axes.get_title()) == (1, 2, "title")


# ---- what has not run


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
