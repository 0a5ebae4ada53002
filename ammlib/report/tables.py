"""Published numbers beside ours, and other tables of stored runs: as text in a terminal, as HTML in a notebook."""

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
from pandas import DataFrame

from ammlib.margin.parts import SHRINKAGE
from ammlib.methods.registry import METHODS
from ammlib.report.frame import LONGER, METRICS, goes_on, history, published, strength
from ammlib.report.measurements import core_hours
from ammlib.training.recipes import Recipe, make_recipe
from ammlib.training.runs import Run
from ammlib.training.studies import Job

COURSE = {  # columns of `course`, from the history of a run
    "train_error": "training %",
    "test_error": "test %",
    "test_margin": "margin",  # of a few images
    "regulariser": "term",
    "kept": "kept",  # of a batch
    "kept_margin": "their margin",
}
COLOURS = {"yes": "#007a56", "no": "#c04000", "?": "#888888"}  # of a cell that says just this
GROUPS = {  # of the columns of paper beside ours
    "": ("net", "method"),
    "paper": METRICS.values(),
    "ours": (*METRICS.values(), "n", "scale"),
    "same direction": METRICS.values(),
    "standard errors apart": METRICS.values(),
}
CELL = "white-space: nowrap; text-align: left; padding: 0.2em 0.4em"
WORDS = CELL.replace("nowrap", "normal")  # of a header, and of a cell with more than `LONG` characters
LONG = 25


# ---- how a table looks


class Table(str):
    """A table as aligned text; a notebook shows it as HTML."""

    frame: DataFrame
    notes: tuple[str, ...]

    def __new__(cls, frame: DataFrame, *notes: str) -> "Table":
        """Cells are texts; columns that are all empty are left out, notes stand below."""
        frame = frame.loc[:, (frame != "").any().to_numpy()]
        table = super().__new__(cls, "\n".join([*text_lines(frame), *([""] if notes else []), *notes]).strip("\n"))
        table.frame, table.notes = frame, notes
        return table

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        body = "" if self.frame.empty else self.frame.to_html(index=False, border=0, na_rep="")
        body = re.sub("<(td|th)( [^>]*)?>(.*?)</", styled, body)
        for word, colour in COLOURS.items():
            body = body.replace(f">{word}</td>", f'><b style="color: {colour}">{word}</b></td>')
        return body + "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)


def styled(cell: re.Match[str]) -> str:
    """A cell of HTML with its style: where the page is narrow words wrap, but numbers stay in one line."""
    tag, attributes, text = cell.groups("")
    style = WORDS if tag == "th" or len(text) > LONG else CELL
    return f'<{tag}{attributes} style="{style}">{text}</'


def text_lines(frame: DataFrame) -> list[str]:
    """Aligned columns; above them, if they have any, the names of their groups."""
    heads = [list(frame.columns.get_level_values(level)) for level in range(frame.columns.nlevels)]
    for groups in heads[:-1]:
        groups[:] = ["" if i and name == groups[i - 1] else name for i, name in enumerate(list(groups))]
    lines = [*heads, *frame.to_numpy().tolist()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def aligned(cells: Sequence[Sequence[str]], *notes: str) -> Table:
    """A header and lines as a table."""
    return Table(DataFrame(cells[1:], columns=cells[0]), *notes)


def as_markdown(table: Table) -> str:
    heads = [" ".join(filter(None, names)) if isinstance(names, tuple) else names for names in table.frame.columns]
    lines = [heads, ["---"] * len(heads), *table.frame.to_numpy().tolist()]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *(f"\n{note}" for note in table.notes)])


def as_latex(table: Table) -> str:
    """For LaTeX's booktabs; what its text fonts lack stands in mathematics."""
    text: str = table.frame.to_latex(index=False, escape=True, multicolumn_format="l").rstrip()
    for symbol, formula in {"±": r"\pm", "∇f": r"\nabla f", "<": "<", ">": ">"}.items():
        text = text.replace(symbol, f"${formula}$")
    return text


FORMATS: dict[str, Callable[[DataFrame], str]] = {  # of `compare`; csv has the numbers themselves
    "text": lambda rows: beside_paper(rows),
    "md": lambda rows: as_markdown(beside_paper(rows)),
    "csv": lambda rows: rows.to_csv(index=False).rstrip(),
    "latex": lambda rows: as_latex(beside_paper(rows)),
}


# ---- paper versus ours


def number(value: float, std: float = math.nan, bound: str = "") -> str:
    """With two decimals, as the paper prints its numbers."""
    spread = "" if pd.isna(std) else f" ± {std:.2f}"
    return "" if pd.isna(value) else f"{bound}{value:.2f}{spread}"


def named(method: str, condition: str = "") -> str:
    """What tables and figures call a method, with its condition if it has one."""
    return ", ".join(filter(None, (METHODS[method].label, condition)))


def judged(distance: float, metric: str) -> str:
    """A distance in words: a lower error and a larger margin are better."""
    if pd.isna(distance):
        return ""
    better = distance < 0 if metric == "error" else distance > 0
    word = "equal within 2" if abs(distance) <= 2 else "better" if better else "worse"
    return f"{word} ({distance:+.1f})"


def with_competitors(rows: DataFrame) -> Table:
    """A table of the paper: the results on this data set that it quotes, then its own and ours."""
    quoted = published().query("competitor and metric == 'error'")
    return beside_paper(rows, quoted[quoted.dataset.isin(rows.dataset)])


def beside_paper(rows: DataFrame, quoted: DataFrame | None = None) -> Table:
    """The paper's numbers and ours, error beside margin, one line for each row shown; above, those it quotes."""
    columns = [(group, name) for group, names in GROUPS.items() for name in names]
    lines = [
        {
            ("", "net"): quote.arch,
            ("", "method"): named(quote.method).removesuffix("-style"),  # that is ours; this number is theirs
            ("paper", "error %"): number(quote.value, quote.std),
            ("ours", "scale"): quote.note,
        }
        for quote in (() if quoted is None else quoted.itertuples())
    ]
    for _, metrics in rows[rows.shown].groupby(["digest", "condition"], sort=False):
        line: dict[tuple[str, str], str] = {}
        for row in metrics.itertuples():
            name = METRICS[row.metric]
            line |= {("", "net"): row.arch, ("", "method"): named(row.method, row.condition)}
            line |= {("ours", "n"): str(row.n or ""), ("ours", "scale"): row.extent if row.n else not_run(row)}
            line[("paper", name)] = number(row.paper, row.paper_std, row.bound)
            line[("ours", name)] = number(row.ours, row.std)
            line[("same direction", name)] = yes_no(row.same_direction)
            line[("standard errors apart", name)] = judged(row.distance, row.metric)
        lines.append(line)
    return Table(DataFrame(lines, columns=pd.MultiIndex.from_tuples(columns)).fillna(""))


def yes_no(holds: bool | None) -> str:
    return "" if pd.isna(holds) else "yes" if holds else "no"


def not_run(row: Any) -> str:
    hours = core_hours(row.dataset, row.arch, row.method)
    about = f"about {hours:,.0f} core hours" if hours and hours > 1.5 else "an hour or less"
    return "not run here" + (f"; full scale takes {about}" if hours else "")


# ---- other tables of runs


NOTHING = Table(DataFrame(), "not run")


def settings(wanted: Iterable[Job]) -> Table:
    """What runs train with, one line for each net, method and scale; below, where that comes from."""
    groups: dict[tuple[str, str, str], dict[Recipe, list[int]]] = {}
    for recipe, seed in wanted:
        groups.setdefault((recipe.arch, recipe.method, recipe.scale), {}).setdefault(recipe, []).append(seed)
    cells: list[tuple[str, ...]] = []
    sources: dict[str, dict[str, None]] = {}  # source -> what comes from it
    for (arch, method, scale), seeds in groups.items():
        recipe = next(iter(seeds))
        sizes = "|".join(dict.fromkeys(str(r.train_size or "all") for r in seeds))
        noisy = "|".join(dict.fromkeys(str(r.noisy) for r in seeds)) if any(r.noisy for r in seeds) else ""
        cuts = ", ".join(str(epoch) for epoch, _ in recipe.decay)
        schedule = (str(recipe.epochs), f"{recipe.lr:g}", cuts, str(len(seeds[recipe])))
        cells.append((arch, named(method), scale, strength(*seeds), sizes, noisy, *schedule))
        for part in re.split(r"; (?=[\w ]+: )", recipe.source):
            name, _, source = part.partition(": ")
            sources.setdefault(source, {})[name] = None
    header = ("net", "method", "scale", "parameters", "train on", "random labels", "epochs", "lr", "cuts", "seeds")
    return aligned([header, *cells], *(f"{', '.join(names)}: {source}" for source, names in sources.items()))


def course(found: Sequence[Run]) -> Table:
    """How trainings went, to look into a result: errors, the margin of a few test images, the regularisation term, the
    samples that it keeps of a batch; means over the seeds, at the last epoch where not said otherwise."""
    if not found:
        return NOTHING
    epochs = history(found).groupby(["digest", "seed"], sort=False)
    last = epochs.last().join(epochs["test_error"].min().rename("lowest")).groupby("digest", sort=False)
    means = last[[*COURSE, "lowest"]].mean()
    header = ("net", "method", "scale", "train on", "random", *COURSE.values(), "lowest test %", "truncated from")
    cells = [tuple(name.replace("test", "held-out") for name in header) if found[0].recipe.validation else header]
    for recipe in dict.fromkeys(run.recipe for run in found):
        numbers = map(number, means.loc[recipe.digest])
        data = (str(recipe.train_size or ""), str(recipe.noisy or ""))
        name = named(recipe.method, LONGER if goes_on(recipe) else "")
        cells.append((recipe.arch, name, recipe.scale, *data, *numbers, truncated_from(recipe)))
    return aligned(cells)


def truncated_from(recipe: Recipe) -> str:
    """The margin from which on a misclassified sample has no pull, since λR(dm) is truncated there."""
    terms = recipe.regulariser or {}
    if "shrinkage" not in terms or "clip" not in terms:
        return ""
    limit = SHRINKAGE[terms["shrinkage"]].inverse(terms["clip"] / terms["lam"]) / terms["d"]
    return f"{limit:.2f}" if math.isfinite(limit) else ""


def ranking(found: Iterable[Run]) -> Table:
    """The runs of a search, and a reference among them, by their error; the recipe's choice is marked."""
    runs = sorted({(run.recipe, run.seed): run for run in found}.values(), key=lambda run: run.metrics["error"])
    rates = {run.recipe.lr for run in runs if run.recipe.epochs}  # what is only evaluated has none
    cells = [("rank", "method", "parameters", "error %", "margin", "")]
    for rank, run in enumerate(runs, 1):
        recipe = run.recipe
        rate = f"lr={recipe.lr:g}" if len(rates) > 1 and recipe.epochs else ""
        chosen = make_recipe(recipe.dataset, recipe.arch, recipe.method, recipe.scale)
        mark = "the recipe" if recipe.arguments and choice(recipe) == choice(chosen) else ""
        parameters = " ".join(filter(None, (strength(recipe), rate)))
        numbers = (number(run.metrics["error"]), number(run.metrics["margin"]))
        cells.append((str(rank), named(recipe.method), parameters, *numbers, mark))
    return aligned(cells) if runs else NOTHING


def choice(recipe: Recipe) -> tuple[float, str]:
    """What a search chooses."""
    return recipe.lr, strength(recipe)
