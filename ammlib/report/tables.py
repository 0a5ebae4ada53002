"""Published numbers beside ours: paper | ours (mean ± std, n) | scale | same direction?"""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from ammlib.data.files import home
from ammlib.margin.parts import SHRINKAGE
from ammlib.training.recipes import ALIASES, Recipe, label, make_recipe, reference_of
from ammlib.training.runs import Run, load_run
from ammlib.training.studies import study

METRICS = {"error": 2, "margin": 2}  # decimals, as the paper prints them
COURSE = {  # columns of `course`, from the history of a run
    "train_error": "training %",
    "test_error": "test %",
    "test_margin": "margin",  # of a few images
    "regulariser": "term",
    "kept": "kept",  # of a batch
    "kept_margin": "their margin",
}
TRIAL = 1_000  # training images of short runs that only show that a net runs: too few to tell anything of a method
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

    @property
    def span(self) -> tuple[float, float]:
        """The number, or all that a limit allows."""
        return (-math.inf if "<" in self.bound else self.value), (math.inf if ">" in self.bound else self.value)

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
    def method(self) -> str:
        """What tables call it, with its condition if it has one."""
        return ", ".join(filter(None, (label(self.recipe.method), self.condition)))

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
    with open(home() / "results" / "paper.csv", encoding="utf-8", newline="") as file:
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
    if recipe.validation:  # a search: no number of the paper belongs to it
        return f"validation, {strength(recipe)}"
    if recipe.half == "search":  # likewise; what is only evaluated has no rate
        rate = f"lr={recipe.lr:g}" if recipe.epochs else ""
        return ", ".join(filter(None, ("search half", rate, strength(recipe))))
    if (recipe.method, recipe.start) == ("reference", "reference"):  # nor to what AMM's fine-tuning is compared with
        return "trained longer"
    return f"noisy={recipe.noisy}" if recipe.noisy else ""


def strength(*recipes: Recipe) -> str:
    """The regulariser's own parameters, such as λ=32 c=2 d=1; of several recipes all values, as in λ=16|32|64."""
    names, found = {"lam": "λ", "c": "c", "d": "d", "gamma": "γ"}, [r.regulariser or {} for r in recipes]
    values = {symbol: [f"{r[name]:g}" for r in found if name in r] for name, symbol in names.items()}
    return " ".join(f"{symbol}={'|'.join(dict.fromkeys(texts))}" for symbol, texts in values.items() if texts)


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
    """Does our change from the reference have the sign of the paper's?"""
    if reference is None or is_trial(row.recipe) or not all(r.paper and r.values for r in (row, reference)):
        return None
    (low, high), (reference_low, reference_high) = row.paper.span, reference.paper.span
    if low > reference_high:
        return mean(row.values) > mean(reference.values)
    return mean(row.values) < mean(reference.values) if high < reference_low else None


def is_trial(recipe: Recipe) -> bool:
    """Does a run of this recipe only show that it runs?"""
    return recipe.scale == "short" and (recipe.train_size or math.inf) <= TRIAL


def as_text(rows: Iterable[Row]) -> str:
    """Aligned columns, for terminals and notebooks."""
    return aligned([HEADER, *(row.cells() for row in rows)])


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """A header and lines as columns, without those that are empty."""
    used = [i for i, _ in enumerate(cells[0]) if any(line[i] for line in cells[1:])]
    widths = {i: max(len(line[i]) for line in cells) for i in used}
    return "\n".join("  ".join(line[i].ljust(widths[i]) for i in used).rstrip() for line in cells)


def by_recipe(rows: Iterable[Row]) -> dict[Recipe, dict[str, Row]]:
    """The rows of each recipe by their metric."""
    found: dict[Recipe, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.recipe, {})[row.metric] = row
    return found


def with_competitors(rows: Sequence[Row]) -> str:
    """A table of the paper: the results on this data set that it quotes, then its own and ours."""
    of_data = [p for p in published() if p.competitor and p.dataset == rows[0].recipe.dataset]
    return beside_paper(rows, [p for p in of_data if p.metric == "error"])


def beside_paper(rows: Iterable[Row], quoted: Iterable[Published] = ()) -> str:
    """The paper's numbers and ours, error beside margin, one line for each recipe; above, those it quotes."""
    cells = [("method", "net", "error %", "ours", "margin", "ours", "scale")]  # no wider than a notebook is
    cells += [(p.method.replace("_", " "), p.arch, str(p), "", "", "", p.note) for p in quoted]
    for recipe, by_metric in by_recipe(rows).items():
        numbers = [text for row in by_metric.values() for text in (str(row.paper or ""), row.ours)]
        cells.append((by_metric["error"].method, recipe.arch, *numbers, extent(recipe)))
    return aligned(cells)


def extent(recipe: Recipe) -> str:
    """The scale and what the short one amounts to, such as "short: 60 epochs, 5,000 images"; or that it is a trial."""
    if recipe.scale == "full":
        return "full"
    scale = "trial" if is_trial(recipe) else recipe.scale
    before = reference_of(recipe).epochs if recipe.start == "reference" else 0
    epochs = f"{f'{before} + ' if before else ''}{recipe.epochs} epoch{'s' * (recipe.epochs != 1)}"
    images = f"{recipe.train_size:,}" if recipe.train_size else "all"
    half = ", half of the test images" if recipe.half else ""
    return f"{scale}: {epochs}{from_weights(recipe)}, {images} images{half}"


def from_weights(recipe: Recipe) -> str:
    """Whose weights a recipe starts from, if they are published ones, and whether their net is the paper's."""
    return {None: "", "akamaster": " from akamaster's", "chenyaofo": " from chenyaofo's (option B)"}[recipe.weights]


def settings(wanted: Iterable[tuple[Recipe, int]]) -> str:
    """What runs train with, one line for each net and method; below, where that comes from."""
    groups: dict[tuple[str, str], dict[Recipe, list[int]]] = {}
    for recipe, seed in wanted:
        groups.setdefault((recipe.arch, recipe.method), {}).setdefault(recipe, []).append(seed)
    header = ("net", "method", "parameters", "train on", "random labels", "epochs", "lr", "cuts", "seeds")
    cells: list[tuple[str, ...]] = [header]
    sources: dict[str, dict[str, None]] = {}  # source -> what comes from it
    for (arch, method), seeds in groups.items():
        recipe = next(iter(seeds))
        sizes = "|".join(dict.fromkeys(str(r.train_size or "all") for r in seeds))
        noisy = "|".join(dict.fromkeys(str(r.noisy) for r in seeds)) if any(r.noisy for r in seeds) else ""
        cuts = ", ".join(str(epoch) for epoch, _ in recipe.decay)
        schedule = (str(recipe.epochs), f"{recipe.lr:g}", cuts, str(len(seeds[recipe])))
        cells.append((arch, label(method), strength(*seeds), sizes, noisy, *schedule))
        for part in re.split(r"; (?=[\w ]+: )", recipe.source):
            name, _, source = part.partition(": ")
            sources.setdefault(source, {})[name] = None
    return "\n".join([aligned(cells), "", *(f"{', '.join(names)}: {source}" for source, names in sources.items())])


def course(found: Iterable[Run]) -> str:
    """How trainings went, to look into a result: errors, the margin of a few test images, the regularisation term, the
    samples that it keeps of a batch; means over the seeds, at the last epoch where not said otherwise."""
    groups: dict[Recipe, list[Run]] = {}
    for run in found:
        groups.setdefault(run.recipe, []).append(run)
    header = ("net", "method", "train on", "random", *COURSE.values(), "lowest test %", "truncated from")
    if any(recipe.validation for recipe in groups):
        header = tuple(name.replace("test", "held-out") for name in header)
    cells = [header]
    for recipe, runs in groups.items():
        last = [[run.history[-1][name] for run in runs] for name in COURSE]
        numbers = ["" if None in values else f"{mean(values):.2f}" for values in last]
        lowest = mean(min(epoch["test_error"] for epoch in run.history) for run in runs)
        data = (str(recipe.train_size or ""), str(recipe.noisy or ""))
        cells.append((recipe.arch, label(recipe.method), *data, *numbers, f"{lowest:.2f}", truncated_from(recipe)))
    return aligned(cells)


def truncated_from(recipe: Recipe) -> str:
    """The margin from which on a misclassified sample has no pull, since λR(dm) is truncated there."""
    terms = recipe.regulariser or {}
    if "shrinkage" not in terms or "clip" not in terms:
        return ""
    limit = SHRINKAGE[terms["shrinkage"]].inverse(terms["clip"] / terms["lam"]) / terms["d"]
    return f"{limit:.2f}" if math.isfinite(limit) else ""


def ranking(found: Iterable[Run]) -> str:
    """The runs of a search, and a reference among them, by their validation error; the recipe's choice is marked."""
    cells = [("rank", "parameters", "validation error %", "margin", "")]
    for rank, run in enumerate(sorted(found, key=lambda run: run.metrics["error"]), 1):
        recipe, values = run.recipe, strength(run.recipe)
        chosen = values and values == strength(make_recipe(recipe.dataset, recipe.arch, recipe.method))
        numbers = (f"{run.metrics['error']:.2f}", f"{run.metrics['margin']:.2f}")
        cells.append((str(rank), values or label(recipe.method), *numbers, "the recipe" if chosen else ""))
    return aligned(cells) if len(cells) > 1 else "not run"
