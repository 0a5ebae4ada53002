"""CONTRIBUTING.md, done: a new data set, a new method and a new notebook, each by one file and at most one row."""

import json

import nbformat
import numpy as np
import pytest
from conftest import make_arrays, sums

from ammlib import load_data, make_model
from ammlib.cli import main
from ammlib.data.registry import DATASETS, Entry
from ammlib.report import reproduce

NOTEBOOK = {
    "imports": "from ammlib import compare\nfrom ammlib.report.notebook import check_parameters, stored_runs\n"
    "from ammlib.training.studies import study",
    "parameters": 'scale: str = "full"  # the only one of the toy',
    "check": 'check_parameters(globals(), scale=("full",))',
    "runs": 'runs = stored_runs(study("fig1", scale)[:2])\nprint(len(runs), "runs of", runs[0].recipe.dataset)',
}


def read_stripes(name, root):
    """The one function that a data set needs: of its name and the data folder, the four arrays."""
    with np.load(root / "stripes.raw.npz") as file:
        return dict(file)


@pytest.fixture
def stripes(tmp_path, own_folders, monkeypatch):
    """The row of a data set whose file lies in the data folder: digits of two classes, but for the noise."""
    arrays = make_arrays(60, 20, (8, 8, 1), num_classes=2)
    row = Entry(
        "digits", 2, (0.5,), class_names=("up", "down"), sources={"its file": read_stripes}, sha256=sums(arrays)
    )
    monkeypatch.setitem(DATASETS, "stripes", row)
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "stripes.raw.npz", **arrays)
    return tmp_path


def test_a_data_set_is_a_row_and_a_reader(stripes, capsys):
    data = load_data("stripes")
    assert data.classes == ("up", "down") and (stripes / "data" / "stripes.npz").exists()
    model = make_model("stripes", "mlp")
    assert model(data.test[0]).shape == (20, 2) and model[0].mean.item() == 0.5
    command = "train --dataset stripes --family digits --arch mlp --method amm --scale short --set epochs=1 batch=20"
    assert main(command.split()) == 0 and "stripes/mlp/amm, seed 0: error" in capsys.readouterr().out
    (run,) = (stripes / "results" / "runs" / "stripes").rglob("*.json")
    assert json.loads(run.read_text())["train_images"] == 60


def test_damaged_bytes_of_a_new_data_set_are_refused(stripes, capsys):
    np.savez(stripes / "data" / "stripes.raw.npz", **make_arrays(60, 20, (8, 8, 1), num_classes=5))
    assert main(["data", "stripes"]) == 2 and "y_train of stripes has SHA-256" in capsys.readouterr().err


def test_a_method_is_a_class_and_a_row(own_folders, tmp_path, monkeypatch, capsys):
    registry = pytest.importorskip("ammlib.methods.registry")
    method = pytest.importorskip("ammlib.methods.method")

    class SmallLogits(method.Method):
        """Cross-entropy and the mean square of the logits."""

        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def term(self, model, batch, logits):
            return self.weight * logits.square().mean()

    row = registry.Row(SmallLogits, "small logits", "#123456", {"weight": 0.1}, "chosen here")
    monkeypatch.setitem(registry.METHODS, "small_logits", row)
    command = "train --dataset digits --arch mlp --method small_logits --scale short --set epochs=1 weight=0.5"
    assert main(command.split()) == 0 and "digits/mlp/small_logits, seed 0: error" in capsys.readouterr().out
    (stored,) = (tmp_path / "results" / "runs" / "digits" / "mlp" / "small_logits").glob("*.json")
    run = json.loads(stored.read_text())
    assert run["recipe"]["regulariser"]["weight"] == 0.5 and run["history"][0]["regulariser"] > 0


def test_a_notebook_is_a_file(tmp_path, monkeypatch, capsys):
    cells = [nbformat.v4.new_markdown_cell("# 11 Fig. 1 once more\n\n**Claim.** MIN+EXP separates the toy.")]
    for name, source in NOTEBOOK.items():
        cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": [name]}))
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / "11_once_more.ipynb")
    monkeypatch.setattr(reproduce, "home", lambda: tmp_path)
    monkeypatch.setattr(reproduce.readme, "write", lambda: False)
    assert main(["reproduce", "11", "--output", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "11_once_more.html").read_text("utf-8")
    assert "2 runs of toy" in page and "2 of 2 runs are stored" in page
    assert '<a href="11_once_more.html">' in (tmp_path / "out" / "index.html").read_text("utf-8")
