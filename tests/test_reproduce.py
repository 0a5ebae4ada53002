"""Facts about `python -m ammlib reproduce`: all notebooks run, a failing one is named, one page shows what came out."""

import nbformat
import pytest

from ammlib.cli import main
from ammlib.report import reproduce

GOOD = """
import os, pathlib
folder = pathlib.Path(os.environ["AMMLIB_FIGURES"])
folder.mkdir(exist_ok=True)
(folder / "drawn.png").write_bytes(b"a figure")
print("all is well")
"""
BAD = "raise ValueError('a margin is < 0')"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that stands for the checkout, with a folder for notebooks; README.md is left alone."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(reproduce, "home", lambda: tmp_path)
    monkeypatch.setattr(reproduce.readme, "write", lambda: False)
    monkeypatch.setenv("AMMLIB_FIGURES", str(tmp_path / "figures"))
    return tmp_path


@pytest.fixture
def call(checkout, capsys):
    """Run the command: its exit code, output and messages."""

    def run(*names):
        return main(["reproduce", *names, "--output", str(checkout / "out")]), *capsys.readouterr()

    return run


def add(checkout, **sources):
    for name, source in sources.items():
        cells = [nbformat.v4.new_code_cell(source.strip())]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), checkout / "notebooks" / f"{name}.ipynb")


def test_a_failing_notebook_is_named_and_the_others_still_run(checkout, call):
    add(checkout, bad=BAD, good=GOOD)
    (checkout / "figures").mkdir()
    (checkout / "figures" / "old.png").write_bytes(b"drawn before")
    code, out, _ = call()
    assert code == 1
    assert "FAILED: ValueError: a margin is < 0" in next(line for line in out.splitlines() if line.startswith("bad"))
    assert "FAILED" not in next(line for line in out.splitlines() if line.startswith("good"))
    page = (checkout / "out" / "index.html").read_text("utf-8")
    assert '<a href="bad.html">bad</a> <small>failed: ValueError: a margin is &lt; 0</small>' in page
    assert '<a href="good.html">good</a>' in page
    assert page.count("<img") == 1 and '<img src="figures/drawn.png" alt="drawn">' in page
    assert (checkout / "out" / "figures" / "drawn.png").read_bytes() == b"a figure"
    assert "all is well" in (checkout / "out" / "good.html").read_text("utf-8")
    assert "a margin is" in (checkout / "out" / "bad.html").read_text("utf-8")


def test_all_good_is_success_only_the_named_notebooks_run_and_their_files_are_not_changed(checkout, call):
    add(checkout, bad=BAD, good=GOOD)
    before = (checkout / "notebooks" / "good.ipynb").read_bytes()
    code, out, _ = call("good")
    assert code == 0
    assert "bad" not in out and "FAILED" not in out
    assert "bad" not in (checkout / "out" / "index.html").read_text("utf-8")
    assert nbformat.read(checkout / "out" / "good.ipynb", 4).cells[0].outputs[0].text == "all is well\n"
    assert (checkout / "notebooks" / "good.ipynb").read_bytes() == before


def test_the_beginning_of_a_name_is_enough(checkout):
    add(checkout, bad=BAD, good=GOOD, goods=GOOD)
    known = reproduce.notebooks()
    assert list(reproduce.beginning_with(["b"], known)) == ["bad"]
    assert list(reproduce.beginning_with(["good", "bad"], known)) == ["good", "goods", "bad"]


def test_an_unknown_name_lists_the_choices_before_anything_runs(checkout, call):
    add(checkout, bad=BAD, good=GOOD)
    code, out, err = call("good", "goood")
    assert (code, out, err) == (2, "", "error: unknown notebook 'goood'; choose from bad, good\n")
    assert not (checkout / "out").exists()


def test_no_notebooks_is_not_a_success(call):
    code, _, err = call()
    assert code == 2
    assert "no notebooks in" in err


def test_an_unreadable_notebook_fails_and_its_page_of_an_earlier_run_is_gone(checkout, call):
    (checkout / "notebooks" / "broken.ipynb").write_text("{")
    (checkout / "out").mkdir()
    (checkout / "out" / "broken.html").write_text("an earlier run")
    code, out, _ = call()
    assert code == 1
    assert out.startswith("broken ... ") and "FAILED" in out
    assert not (checkout / "out" / "broken.html").exists()
