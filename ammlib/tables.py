"""Published numbers beside ours: paper | ours (mean ± std, n) | scale | same direction?"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev

from ammlib.recipes import ALIASES, Recipe, study
from ammlib.runs import load_run, results_root

METRICS = {"error": 2, "margin": 2}  # decimals, as the paper prints them
HEADER = ("arch", "method", "condition", "metric", "paper", "ours", "scale", "same direction")


@dataclass(frozen=True)
class Published:
    """One number of the paper."""

    source: str  # "Table 3", "Fig. 4 text"
    dataset: str
    arch: str
    method: str
    condition: str  # "", "train=20000" or "noisy=55000"
    metric: str  # "error" in %, "margin", ...
    value: float
    std: float | None
    bound: str  # "" for a value; "<", ">", "<=" or ">=" for a limit
    competitor: bool  # somebody else's result, quoted by the paper
    note: str

    def __str__(self) -> str:
        decimals = METRICS.get(self.metric, 2)
        spread = "" if self.std is None else f" ± {self.std:.{decimals}f}"
        return f"{self.bound}{self.value:.{decimals}f}{spread}"


@dataclass(frozen=True)
class Row:
    """One metric of one recipe: what the paper says and what our runs gave."""

    recipe: Recipe
    condition: str
    metric: str
    paper: Published | None
    values: tuple[float, ...]  # one for each seed that has run
    same_direction: bool | None = None  # as the paper's change from its reference; None if it cannot be told

    @property
    def ours(self) -> str:
        if not self.values:
            return "not run"
        decimals, n = METRICS[self.metric], len(self.values)
        spread = f" ± {stdev(self.values):.{decimals}f}" if n > 1 else ""
        return f"{mean(self.values):.{decimals}f}{spread} (n={n})"

    def cells(self) -> tuple[str, ...]:
        verdict = {None: "", True: "yes", False: "no"}[self.same_direction]
        paper = "" if self.paper is None else str(self.paper)
        recipe = self.recipe
        return recipe.arch, recipe.method, self.condition, self.metric, paper, self.ours, recipe.scale, verdict


def published() -> list[Published]:
    """All rows of results/paper.csv."""
    with open(results_root() / "paper.csv", encoding="utf-8", newline="") as file:
        return [
            Published(
                **{
                    **row,
                    "value": float(row["value"]),
                    "std": float(row["std"]) if row["std"] else None,
                    "competitor": row["competitor"] == "true",
                }
            )
            for row in csv.DictReader(file)
        ]


def condition_of(recipe: Recipe, name: str) -> str:
    """How a study varies the data, in the words of paper.csv."""
    if ALIASES.get(name, name) == "fig4":
        return f"train={recipe.train_size or 60000}"
    return f"noisy={recipe.noisy}" if recipe.noisy else ""


def compare(name: str, scale: str = "auto") -> list[Row]:
    """The rows of a study, reference first, each with the paper's number where there is one."""
    seeds: dict[Recipe, list[int]] = {}
    for recipe, seed in study(name, scale):
        seeds.setdefault(recipe, []).append(seed)
    paper = {(p.dataset, p.arch, p.method, p.condition, p.metric): p for p in published() if not p.competitor}
    rows: dict[tuple, Row] = {}
    for recipe, numbers in seeds.items():
        runs = [run for seed in numbers if (run := load_run(recipe, seed)) is not None]
        condition = condition_of(recipe, name)
        for metric in METRICS:
            key = (recipe.dataset, recipe.arch, recipe.method, condition, metric)
            values = tuple(run.metrics[metric] for run in runs)
            row = Row(recipe, condition, metric, paper.get(key), values)
            base = rows.get((recipe.dataset, recipe.arch, "reference", condition, metric))
            rows[key] = Row(**{**vars(row), "same_direction": same_direction(row, base)})
    return list(rows.values())


def same_direction(row: Row, reference: Row | None) -> bool | None:
    """Does our change from the reference have the sign of the paper's? For a limit: is it kept?"""
    if row.paper is None or not row.values:
        return None
    ours, limit = mean(row.values), row.paper.value
    if row.paper.bound:
        return ours <= limit if "<" in row.paper.bound else ours >= limit
    if reference is None or reference.paper is None or not reference.values:
        return None
    return (ours > mean(reference.values)) == (limit > reference.paper.value)


def as_text(rows: Iterable[Row]) -> str:
    """Aligned columns, for terminals and notebooks."""
    cells = [HEADER, *(row.cells() for row in rows)]
    used = [i for i, _ in enumerate(HEADER) if any(line[i] for line in cells[1:])]
    widths = {i: max(len(line[i]) for line in cells) for i in used}
    return "\n".join("  ".join(line[i].ljust(widths[i]) for i in used).rstrip() for line in cells)


def as_markdown(rows: Iterable[Row]) -> str:
    """The same as a Markdown table, for the README."""
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
