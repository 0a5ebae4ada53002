"""What is stored as DataFrames, for tables, figures and anyone's own analysis: runs, epochs, published numbers."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd
from pandas import DataFrame, Series

from ammlib.data.files import SHIPPED, stored_results
from ammlib.training.recipes import ALIASES, Recipe, reference_of
from ammlib.training.runs import DAMAGE, Run, load_run, results_root
from ammlib.training.studies import Job, scales_of, study

SHOWN_APART = ("recipe", "metrics", "history", "versions", "weights")  # of a run: columns of their own, or none
IDENTITY = ("dataset", "arch", "method", "scale", "train_size", "noisy", "digest", "seed")  # columns of `history`

SYMBOLS = {
    "lam": "λ",
    "gamma": "γ",
    "alpha": "α",
    "rho": "ρ",
    "pi": "π",
    "minus_log_s1": "-lnσ₁",
    "minus_log_s2": "-lnσ₂",
}
SAME_FOR_ALL = ("steps", "overshoot", "num_rivals", "clip")  # arguments of the attack
METRICS = {"error": "error %", "margin": "margin"}
LARGEST_FIRST = ("full", "tuned", "short")  # scales
PAPERS_RUNS = 5  # behind each published mean that has a standard deviation
COMPARED_WITH = ("reference", "control")  # what another method is held against
LONGER = "trained longer"  # than the reference, which it goes on from


def results(runs: Iterable[Run] | None = None) -> DataFrame:
    """One row for each of these runs, or for each that is stored.

    Columns are the fields of the recipe (dataset, arch, method, scale, epochs, lr, train_size, ...), the name of its
    regulariser and the arguments of that (lam, c, d, ...), its `digest`, the `seed`, the metrics (`error` in % of the
    test images, `margin` in pixel units, its quantiles), the `device` and the `seconds` that the training took.
    """
    rows = [columns_of(run) for run in (all_runs() if runs is None else runs)]
    return DataFrame(rows, columns=None if rows else [*IDENTITY, "error", "margin"]).convert_dtypes()


def columns_of(run: Run) -> dict[str, Any]:
    recipe = run.recipe
    own = {name: value for name, value in vars(run).items() if name not in SHOWN_APART}
    regulariser = {"regulariser": (recipe.regulariser or {}).get("name"), **recipe.arguments}
    return {**asdict(recipe), **regulariser, "digest": recipe.digest, **own, **run.metrics}


def history(runs: Iterable[Run] | None = None) -> DataFrame:
    """One row for each epoch of these runs, or of all that are stored, at which something was measured.

    Columns are what tells the runs apart (dataset, arch, method, scale, train_size, noisy, digest, seed), the `epoch`,
    and what was measured: `lr`, `loss`, `train_error` and `test_error` in %, `regulariser` (its term), `kept` (of a
    batch), `kept_margin` (the mean of the correct ones among them) and `test_margin` (that of a few test images).
    """
    rows = []
    for run in all_runs() if runs is None else runs:
        known = columns_of(run)
        rows += [{name: known[name] for name in IDENTITY} | epoch for epoch in run.history]
    return DataFrame(rows, columns=None if rows else [*IDENTITY, "epoch"]).convert_dtypes()


def all_runs() -> Iterator[Run]:
    """Every stored run, in the order of the folders."""
    roots = [root / "runs" for root in (SHIPPED, results_root())]
    paths = {path.relative_to(root): path for root in roots for path in root.rglob("*.json")}
    for _, path in sorted(paths.items()):
        try:
            stored = json.loads(path.read_text("utf-8"))
            recipe, seed = Recipe.from_dict(stored["recipe"]), stored["seed"]
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged ({error}); delete it to train anew") from error
        if (run := load_run(recipe, seed)) is not None:
            yield run


def published() -> DataFrame:
    """The numbers of the paper, results/paper.csv, one row each.

    Columns: `source` ("Table 3", "Fig. 4 text"), dataset, arch, method, `condition` ("", "train=20000", "noisy=55000"),
    `metric` ("error" in %, "margin", ...; "smallest_margin" of the toy, where the paper has no mean), `value`, `std`,
    `bound` ("" for a value; "<", ">", "<=", ">=" for a limit), `competitor` (somebody else's result, quoted by the
    paper) and a note.
    """
    texts = dict.fromkeys(("source", "dataset", "arch", "method", "condition", "metric", "bound", "note"), "")
    path = stored_results() / "paper.csv"
    numbers = pd.read_csv(path) if path.stat().st_size else DataFrame()
    if missing := {*texts, "value", "std", "competitor"} - set(numbers) or ({"rows"} if numbers.empty else set()):
        raise ValueError(f"{path} is damaged: no {', '.join(sorted(missing))}; take it from the repository again")
    return numbers.fillna(texts)


def goes_on(recipe: Recipe) -> bool:
    """Is it a reference that starts from the reference?"""
    return (recipe.method, recipe.start) == ("reference", "reference")


def condition_of(recipe: Recipe, name: str) -> str:
    """How a study varies the data, in the words of paper.csv."""
    if ALIASES.get(name, name) == "fig4":
        return f"train={recipe.train_size or 60000}"
    if recipe.validation:  # a search: no number of the paper belongs to it
        return f"validation, {strength(recipe)}"
    if recipe.half == "search":  # likewise; what is only evaluated has no rate
        rate = f"lr={recipe.lr:g}" if recipe.epochs else ""
        return ", ".join(filter(None, ("search half", rate, strength(recipe))))
    if goes_on(recipe):  # nor to what AMM's fine-tuning is compared with
        return LONGER
    return f"noisy={recipe.noisy}" if recipe.noisy else ""


def strength(*recipes: Recipe) -> str:
    """The method's own parameters, such as λ=32 c=2 d=1; of several recipes all values, as in λ=16|32|64."""
    values: dict[str, list[str]] = {}
    for recipe in recipes:
        for name, value in recipe.arguments.items():
            if type(value) in (int, float) and name not in SAME_FOR_ALL:
                values.setdefault(SYMBOLS.get(name, name), []).append(f"{value:g}")
    return " ".join(f"{name}={'|'.join(dict.fromkeys(texts))}" for name, texts in values.items())


def compare(name: str, scale: str = "auto") -> DataFrame:
    """A study beside the paper: one row for each net, method, condition, scale and metric.

    "auto" has all scales, `shown` is true for the largest that has runs. Scales are never mixed in a mean. Columns:
    dataset, arch, method, condition, scale, `extent` (what the scale amounts to), train_size, noisy, digest, metric;
    `ours`, the mean over `n` seeds, and its `std`; `paper`, `paper_std`, `bound`; `same_direction`, whether our change
    from the reference of this scale has the sign of the paper's; `distance` from the paper's mean in units of the
    combined standard error (with one seed the paper's deviation stands for ours), where the paper has a deviation and
    the scale is full.
    """
    jobs = [job for size in (sizes_of(name) if scale == "auto" else [scale]) for job in study(name, size)]
    found = results(run for job in jobs if (run := load_run(*job)) is not None)
    wanted = DataFrame([described(job, name) for job in jobs])
    keys = [*wanted.columns.drop("seed"), "metric"]
    ours = wanted.merge(found[["digest", "seed", *METRICS]], how="left", on=["digest", "seed"])
    ours = ours.melt(wanted.columns, list(METRICS), "metric", "ours").astype({"ours": float})
    rows = ours.groupby(keys, sort=False, dropna=False)["ours"].agg(["mean", "std", "count"]).reset_index()
    rows = rows.rename(columns={"mean": "ours", "count": "n"}).merge(papers_own(), how="left").fillna({"bound": ""})
    rows["same_direction"], rows["distance"] = same_direction(rows), distance(rows).where(rows.scale == "full")
    rows["shown"] = is_shown(rows) if scale == "auto" else True
    order = {"metric": list(METRICS), "arch": list(wanted.arch.unique()), "scale": list(LARGEST_FIRST)}
    return rows.sort_values(list(order), key=lambda c: c.map(order[c.name].index), kind="stable", ignore_index=True)


def sizes_of(name: str) -> list[str]:
    """The scales whose runs are results, the largest first: short ones are none where a study has tuned ones."""
    known = scales_of(name)
    return [scale for scale in LARGEST_FIRST if scale in known and not (scale == "short" and "tuned" in known)]


def described(job: Job, name: str) -> dict[str, str | int | None]:
    recipe, seed = job
    shown = {field: getattr(recipe, field) for field in ("dataset", "arch", "method", "scale", "train_size", "noisy")}
    return {
        **shown,
        "condition": condition_of(recipe, name),
        "extent": extent(recipe),
        "digest": recipe.digest,
        "seed": seed,
    }


def papers_own() -> DataFrame:
    """The paper's results; where it states one twice, the last, which is that of its main table."""
    found = published().query("not competitor").drop(columns=["competitor", "source", "note"])
    found = found.rename(columns={"value": "paper", "std": "paper_std"})
    return found.drop_duplicates(["dataset", "arch", "method", "condition", "metric"], keep="last")


def same_direction(rows: DataFrame) -> Series:
    """Has our change from the reference of the same scale the sign of the paper's? Missing where it cannot be told."""
    low = rows.paper.mask(rows.bound.str.contains("<"), -math.inf)  # a limit allows all below or above it
    high = rows.paper.mask(rows.bound.str.contains(">"), math.inf)
    rows = rows.assign(low=low, high=high)
    place = ["arch", "condition", "scale", "metric"]
    reference = rows[rows.method == "reference"][[*place, "ours", "low", "high"]]
    both = rows.merge(reference, how="left", on=place, suffixes=("", "_reference"))
    rises, falls = both.low > both.high_reference, both.high < both.low_reference
    same = (both.ours > both.ours_reference).where(rises, both.ours < both.ours_reference).astype("boolean")
    return same.where((rises | falls) & both.ours.notna() & both.ours_reference.notna())


def distance(rows: DataFrame) -> Series:
    """From the paper's mean, in units of the combined standard error of both means."""
    std = rows["std"].fillna(rows.paper_std)
    return (rows.ours - rows.paper) / (rows.paper_std**2 / PAPERS_RUNS + std**2 / rows.n.where(rows.n > 0)) ** 0.5


def is_shown(rows: DataFrame) -> Series:
    """Of each row that scale which is the largest with runs, and beside it what it is held against at this scale.

    What has run at no scale is shown once, unless it is a point of a figure of which the paper states no number.
    """
    row, place = ["arch", "method", "condition"], ["arch", "condition", "scale"]
    ran, against = rows.n > 0, rows.method.isin(COMPARED_WITH)
    largest = rows.scale == rows.scale.where(ran).groupby([rows[name] for name in row]).transform("first")
    beside = rows[place].apply(tuple, axis=1)
    never = ~ran.groupby([rows[name] for name in row]).transform("any") & ~rows.duplicated([*row, "metric"])
    stated = rows.paper.notna() | ((rows.condition == "") & (rows.method != "control"))
    return largest | (against & ran & beside.isin(beside[largest & ~against])) | (never & stated)


def jobs_behind(rows: DataFrame, name: str) -> list[Job]:
    """The runs of a study behind the rows shown of it, also those that are missing; of each row at one scale only."""
    shown = set(rows[rows.shown].drop_duplicates(["arch", "method", "condition"]).digest)
    return [job for scale in scales_of(name) for job in study(name, scale) if job.recipe.digest in shown]


def extent(recipe: Recipe) -> str:
    """The scale and what the short one amounts to, such as "short: 60 epochs, 5,000 images"."""
    if recipe.scale == "full":
        return "full"
    before = reference_of(recipe).epochs if recipe.start == "reference" else 0
    epochs = f"{f'{before} + ' if before else ''}{recipe.epochs} epoch{'s' * (recipe.epochs != 1)}"
    images = f"{recipe.train_size:,}" if recipe.train_size else "all"
    half = ", half of the test images" if recipe.half else ""
    return f"{recipe.scale}: {epochs}{from_weights(recipe)}, {images} images{half}"


def from_weights(recipe: Recipe) -> str:
    """Whose weights a recipe starts from, if they are published ones, and whether their net is the paper's."""
    return {None: "", "akamaster": " from akamaster's", "chenyaofo": " from chenyaofo's (option B)"}[recipe.weights]
