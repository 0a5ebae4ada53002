"""The README and docs/ show what the repository does."""

import re

import pytest
from made_up import finished

import ammlib
import ammlib.data.vision  # noqa: F401  torchvision, as the README imports it, also where its operators do not load
from ammlib.data.files import home
from ammlib.report import readme
from ammlib.report.readme import BLOCK, LINES, SECTIONS, pages, render
from ammlib.training.runs import store_run
from ammlib.training.studies import study

PAGES = [*pages(), home() / "CHANGELOG.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(scope="module")
def text():
    return (home() / "README.md").read_text("utf-8")


@each_page
def test_generated_sections_are_those_of_the_stored_results(page):
    text = page.read_text("utf-8")
    assert render(text) == text, "stale: run `python -m ammlib readme`"


def test_every_generated_section_has_one_place():
    found = [name for page in PAGES for _, name, _ in BLOCK.findall(page.read_text("utf-8"))]
    assert sorted(found) == sorted(SECTIONS)


def test_an_unknown_section_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown section 'costt'; choose from badges, "):
        render("<!-- costt -->\n<!-- /costt -->")


def test_the_readme_is_short(text):
    assert len(text.split()) <= 1700
    (table,) = [found[0] for found in BLOCK.finditer(text) if found[2] == "short"]
    assert len([line for line in table.splitlines() if line.startswith("|")]) - 2 <= LINES == 15


def test_its_code_runs_as_written(text, capsys):
    names = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "README.md", "exec"), names)
    assert "error" in capsys.readouterr().out
    assert names["amm"].last.kept and all(p.grad.any() for p in names["model"].parameters())


@each_page
def test_every_file_that_a_page_names_or_links_to_exists(page):
    text = page.read_text("utf-8")
    named = [home() / name for name in re.findall(r"`((?:ammlib|docs|results|tests)/[\w./]*)`", text)]
    links = [page.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert [path for path in named + links if not path.exists()] == []


def test_the_reference_has_every_public_name():
    listed = re.findall(r"(?:auto\w+|data):: ammlib\.(\w+)", (home() / "docs" / "api.md").read_text("utf-8"))
    assert sorted(listed) == sorted(ammlib.__all__)


def test_the_readme_goes_from_reference_to_method_and_names_what_has_not_run(results, monkeypatch):
    monkeypatch.setattr(readme, "TABLES", ["table4"])
    monkeypatch.setattr(readme, "CONTROLS", [])
    for recipe, seed in study("table4", "tuned"):
        if recipe.arch == "resnet20":
            store_run(finished(recipe, seed, {"reference": 8.3, "control": 8.4, "amm": 8.2}[recipe.method], 0.1))
    *table, _, missing = readme.results_table().splitlines()
    (line,) = table[2:]
    assert line.startswith(
        "| cifar10 | resnet20 | AMM (MIN+EXP) | 8.20 → 7.62 | 8.30 → 8.20 ± 0.00 (control 8.40) | 0.10 →"
    )
    assert line.endswith("| error yes, margin **no** |")
    assert missing.startswith("Not run here on cifar10: lenet, nin, ") and "resnet20" not in missing
