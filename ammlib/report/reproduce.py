"""`python -m ammlib reproduce`: every notebook through papermill, its page and figures in out/index.html."""

import html
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ammlib.data.files import home
from ammlib.margin.classifier import choose
from ammlib.report import readme
from ammlib.report.style import figures_root


@dataclass(frozen=True)
class Outcome:
    """How one notebook went."""

    name: str
    seconds: float
    error: str | None  # the last line of what it raised
    figures: tuple[Path, ...]  # the PNGs it drew


def notebooks() -> dict[str, Path]:
    return {path.stem: path for path in sorted((home() / "notebooks").glob("*.ipynb"))}


def beginning_with(names: list[str], known: dict[str, Path]) -> dict[str, Path]:
    """The notebooks whose names begin so: 00 is 00_quickstart, 03 all four of it."""
    chosen: dict[str, Path] = {}
    for name in names:
        found = {stem: path for stem, path in known.items() if stem.startswith(name)}
        chosen |= found or {name: choose("notebook", name, known)}
    return chosen


def reproduce(names: list[str], output: Path) -> list[Outcome]:
    """Execute notebooks one after the other, a failing one included, and gather what they made."""
    known = notebooks()
    chosen = beginning_with(names, known) if names else known
    if not chosen:
        raise FileNotFoundError(f"no notebooks in {home() / 'notebooks'}; start this in a checkout of the repository")
    output.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name, path in chosen.items():
        print(f"{name} ...", end=" ", flush=True)
        outcomes.append(execute(name, path, output))
        print(f"{outcomes[-1].seconds:.0f} s" + (f", FAILED: {outcomes[-1].error}" if outcomes[-1].error else ""))
    (output / "index.html").write_text(index(outcomes), "utf-8")
    print(f"look at {output / 'index.html'}")
    if changed := readme.write():
        print(f"tables redrawn: {', '.join(changed)}")
    return outcomes


def execute(name: str, path: Path, output: Path) -> Outcome:
    """Run one notebook to `output`, as a notebook and as a page; copy the figures it wrote."""
    import nbconvert
    import papermill

    started, clock, error = time.time(), time.monotonic(), None
    executed, page = output / path.name, output / f"{name}.html"
    page.unlink(missing_ok=True)  # of an earlier run
    try:
        quiet = {"progress_bar": False, "extra_arguments": ["--log-level=CRITICAL"]}  # of the kernel's own log
        papermill.execute_notebook(path, executed, kernel_name="python3", **quiet)
    except Exception as raised:  # whatever a cell raises; the other notebooks go on
        error = (str(raised).strip() or repr(raised)).splitlines()[-1]
    seconds = time.monotonic() - clock
    if executed.exists() and executed.stat().st_mtime >= started:
        text, _ = nbconvert.HTMLExporter(embed_images=True).from_filename(str(executed))
        page.write_text(text, "utf-8")
    drawn = [figure for figure in sorted(figures_root().glob("*.png")) if figure.stat().st_mtime >= started]
    (output / "figures").mkdir(exist_ok=True)
    copies = tuple(Path(shutil.copy(figure, output / "figures" / figure.name)) for figure in drawn)
    return Outcome(name, seconds, error, copies)


def index(outcomes: list[Outcome]) -> str:
    """One page with all notebooks, how long they took, and their figures."""
    parts = []
    for outcome in outcomes:
        state = f"failed: {outcome.error}" if outcome.error else f"{outcome.seconds:.0f} s"
        images = "".join(f'<img src="figures/{figure.name}" alt="{figure.stem}">' for figure in outcome.figures)
        link = f'<a href="{outcome.name}.html">{outcome.name}</a>'
        parts.append(f"<h2>{link} <small>{html.escape(state)}</small></h2>\n<div>{images}</div>")
    style = (
        "body{font:16px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "small{color:#666;font-weight:normal}img{max-width:49%;vertical-align:top}"
    )
    title = "Adversarial margin maximisation, reproduced"
    head = f'<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
    body = "\n".join([f"<h1>{title}</h1>", *parts])
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'
