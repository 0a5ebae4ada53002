"""Facts about the user's own data: a run is of the data it was trained on, and what does not fit is refused."""

import json

import numpy as np
import pytest

from ammlib.cli import main
from ammlib.data.datasets import load_data
from ammlib.data.sources import DataError
from ammlib.training.checkpoint import CheckpointError
from ammlib.training.execute import run_or_load
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import run_path
from ammlib.training.train import train

pytestmark = pytest.mark.usefixtures("own_folders")
OWN = ["train", "--dataset", "own", "--family", "digits", "--set", "epochs=1"]


def own_data(folder, seed=0, **changes):
    """The user's own images, at `<folder>/own.npz`."""
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    y = np.arange(40) % 4
    np.savez(folder / "own.npz", **{"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changes})


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))
    own_data(tmp_path / "data")
    return tmp_path / "data"


# ---- whose data they are


def test_a_run_of_other_data_is_not_taken_for_the_stored_one(own, refused, capsys):
    assert main(OWN) == 0 and main(OWN) == 0
    assert "(stored)" in capsys.readouterr().out
    own_data(own, seed=1)
    refused(OWN, "is of other data than own holds now", "another name", "--force")
    refused(["margin", *OWN[1:]], "is of other data")
    (own / "own.npz").unlink()
    assert main(OWN) == 0  # where there is nothing to compare with, what is stored is shown


def test_a_training_does_not_go_on_with_other_data(own, tmp_path):
    recipe, path = make_recipe("own", "mlp", "amm", family="digits", epochs=1), tmp_path / "c.pt"
    train(recipe, 0, checkpoint=path, progress=False)
    own_data(own, seed=1)
    with pytest.raises(CheckpointError, match="another run: different data"):
        train(recipe, 0, checkpoint=path, progress=False)


def test_run_files_without_the_sum_of_their_data_stay_valid(own):
    recipe = make_recipe("own", "mlp", "amm", family="digits", epochs=1)
    run = run_or_load(recipe, 0, progress=False)
    stored = json.loads(run_path(recipe, 0).read_text())
    assert stored.pop("data") == run.data == load_data("own").digest
    run_path(recipe, 0).write_text(json.dumps(stored))
    own_data(own, seed=1)
    assert run_or_load(recipe, 0).weights == run.weights


def test_the_sum_of_data_sees_one_pixel_the_shape_and_the_order(own):
    first = load_data("own")
    changed = {}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        column = getattr(first, name)
        changed[name] = type(first)(*[column.roll(1) if key == name else value for key, value in vars(first).items()])
    changed["shape"] = type(first)(*(v.view(40, 1, 4, 16) if k == "x_train" else v for k, v in vars(first).items()))
    digests = {data.digest for data in changed.values()}
    assert len(digests) == 5 and first.digest not in digests


# ---- what does not fit


@pytest.mark.parametrize(
    "labels, reason",
    [
        (np.zeros(40, int), "2 ... 100,000 classes, here are 1"),
        (np.where(np.arange(40) % 4 == 3, 10**6, np.arange(40) % 4), "of 4 classes, but reach 1000000"),
        (np.array([0, 2**64 - 1] * 20, np.uint64), f"of 2 classes, but reach {2**64 - 1}"),
    ],
)
def test_labels_are_those_of_a_classifier(labels, reason, own, refused):
    own_data(own, y_train=labels)
    refused(OWN, reason, own / "own.npz")


@pytest.mark.parametrize("given", [3, 10**9, 4.5])
def test_a_number_of_classes_that_does_not_fit_is_refused(given, own):
    own_data(own, num_classes=np.array(given))
    with pytest.raises(DataError):
        load_data("own")


def test_the_number_of_classes_may_be_given(own):
    own_data(own, num_classes=np.array(7))
    assert load_data("own").num_classes == 7


def test_images_that_do_not_fit_their_net_are_refused_before_training(own, refused):
    x = np.zeros((40, 20, 20), np.uint8)
    own_data(own, x_train=x, x_test=x)
    for family, usual in (("mnist", "1x28x28"), ("digits", "1x8x8")):
        refused([*OWN[:3], "--family", family, "--set", "epochs=1"], "images of own are 1x20x20", f"takes {usual}")


@pytest.mark.parametrize("name", ["../own", "{root}/own", "sub/own", ".", "..", ""])
def test_a_data_set_is_a_name_and_no_path(name, own, refused):
    name = name.format(root=own)
    for folder in (own, own.parent):
        (folder / "val" / "class").mkdir(parents=True)  # where images of a data set would be
    (own / "sub").mkdir()
    own_data(own / "sub")
    for command in (["data", name], [*OWN[:1], "--dataset", name, *OWN[3:]]):
        refused(command, "unknown data set", repr(name))
