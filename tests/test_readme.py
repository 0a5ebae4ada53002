"""The README shows what the repository does."""

import re

import pytest

from ammlib.data.files import home
from ammlib.report.readme import render


@pytest.fixture(scope="module")
def text():
    return (home() / "README.md").read_text("utf-8")


def test_its_generated_tables_are_those_of_the_stored_results(text):
    assert render(text) == text, "stale: run `python -m ammlib readme`"


def test_its_code_runs_as_written(text, capsys):
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "README.md", "exec"), names)
    assert "error" in capsys.readouterr().out
    assert names["amm"].last.kept and all(p.grad.any() for p in names["model"].parameters())


def test_every_file_that_it_names_exists(text):
    names = re.findall(r"`((?:ammlib|results|tests)/[\w./]*)`", text)
    assert len(names) > 5
    assert all((home() / name).exists() for name in names)
