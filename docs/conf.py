"""The book: README, docs/ and the executed notebooks, by `make book`."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
RESULTS = ["docs/results", "docs/assumptions", "docs/cost", "docs/tightness"]
REFERENCE = ["docs/api", "docs/layout", *sorted(path.stem for path in ROOT.glob("*.md") if path.stem != "README")]
CHAPTERS = {
    "Notebooks": [f"{name.replace('_', ' ')} <notebooks/{name}>" for name in NAMES],
    "Results": RESULTS,
    "How to": sorted({f"docs/{path.stem}" for path in ROOT.glob("docs/*.md")} - {*RESULTS, *REFERENCE}),
    "Reference": REFERENCE,
}

project = "Adversarial margin maximisation"
root_doc = "README"  # pages lie as in the repository, so that their links work in both
include_patterns = ["*.md", "docs/*.md", "notebooks/*.ipynb"]
exclude_patterns = [".*", "ammlib", "checkpoints", "data", "figures", "out", "results", "tests", "workflow"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
nb_execution_mode = "off"  # they are committed executed
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
default_role = "code"  # `name` in docstrings

# MathJax in one script, with its fonts, so that formulas are seen offline.
MATHJAX = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax" / "tex-svg-full.js"
mathjax_path = MATHJAX.name

html_theme = "furo"
html_title = project
html_show_copyright = False
html_static_path = [str(MATHJAX), "book.css"]
html_css_files = ["book.css"]
html_theme_options = {"source_repository": PROJECT["urls"]["Repository"], "source_branch": "main"}


def complete_first_page(app, name, source):
    """The table of contents, which GitHub would show as code, joins it here; badges, which are online, leave."""
    if name == root_doc:
        trees = [["```{toctree}", ":hidden:", f":caption: {title}", *pages, "```"] for title, pages in CHAPTERS.items()]
        text = re.sub("<!-- badges.*/badges -->", "", source[0], flags=re.DOTALL)
        source[0] = "\n\n".join([text, *("\n".join(tree) for tree in trees)])


def setup(app):
    app.connect("source-read", complete_first_page)
