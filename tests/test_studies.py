"""Facts about the studies: each has its runs, shares them, and every published number is of one."""

import csv
from pathlib import Path

import pytest

from ammlib import cli
from ammlib.cli import main
from ammlib.training.recipes import make_recipe, reference_of
from ammlib.training.runs import load_run, run_name
from ammlib.training.studies import STUDIES, scales_of, share, study

TEXT_ONLY = {"Sec. 3.1", "Sec. 3.1 footnote", "Sec. 4.5"}  # published about no run in particular
RUNS = {  # study: runs at full, at short, at tuned scale, where it has them
    "table1": (7 * 5, 4 * 3 + 3 * 2),
    "table2": (4 * 5, 4 * 3),
    "fig4": (12 * 4 * 5, 4 * 4 * 2),
    "fig5": (12 * 3 * 5, 4 * 3 * 2),
    "table3": (3 * 2 * 5, 2 * (3 + 2 + 1)),
    "table4": (7 * 2 * 5, 2 * (2 + 1), (1 + 2 + 2) + 3),
    "table5": (7 * 2 * 5, 2 * 3),
    "table6": (7 * 2 * 5, 2, 3),
    "table7": (3 * 2,),
    "fig1": (6 * 5, 6),
    "grid_min_exp": (27, 27),
    "grid_elsayed": (25, 25),
    "grid_elsayed_noisy": (15, 15),
    "grid_cifar10": (1 + 9, 1 + 9),
    "grid_cifar10_d": (2, 2),
    "search_cifar10": (1 + 2 + 8,),
    "search_cifar100": (1 + 2 + 8,),
    "longer_cifar10": (1 + 2,),
    "all_images": (3, 3),
    "control": (3, 3),
    "control_liunet": (3, 3),
    "grid_svhn": (5, 1 + 5),
    "grid_svhn_c": (2, 1 + 2),
    "all_images_svhn": (3, 3),
    "refined": (2 * 5, 2),
    "systems": (2 * 16 * 2,),
    "hinge": (2 * 2 * 2,),
    "search_systems": (8 * 6,),
    "smoke": (7 * 2, 7 * 2),
    "digits": (4, 4),
}


def test_studies_have_their_runs():
    assert list(RUNS) == list(STUDIES)
    for name, sizes in RUNS.items():
        runs = {scale: study(name, scale) for scale in scales_of(name)}
        assert tuple(map(len, runs.values())) == sizes
        for scale, listed in runs.items():
            assert len(set(listed)) == len(listed)
            assert {run.recipe.scale for run in listed} == {scale}


def test_studies_start_from_references_that_come_first():
    for name in STUDIES:
        for scale in scales_of(name):
            done = set()
            for recipe, seed in study(name, scale):
                if recipe.start == "reference":
                    reference = reference_of(recipe)
                    assert (reference, seed if reference.epochs else 0) in done  # untrained, all seeds are one
                done.add((recipe, seed))


def test_what_varies():
    thousand = [1000 * n for n in range(5, 61, 5)]
    sizes = {run.recipe.train_size for run in study("fig4", "full")}
    assert sizes == {None, *thousand[:-1]}
    assert {run.recipe.noisy for run in study("fig5", "full")} == {0, *thousand[:-1]}
    assert {run.recipe.train_size for run in study("fig4", "short")} == {5000, 10_000, 20_000, None}
    assert {run.recipe.noisy for run in study("fig5", "short")} == {0, 20_000, 40_000, 55_000}
    assert {run.recipe.method for run in study("fig1")} == {
        "avg_lin",
        "avg_inv",
        "avg_exp",
        "min_lin",
        "min_inv",
        "amm",
    }
    for recipe, seed in study("grid_min_exp", "short"):
        assert (recipe.validation, recipe.train_size, recipe.epochs, seed) == (True, 10_000, 10, 0)
        assert recipe.decay == ((5, 0.1), (8, 0.01))
    grid = {(run.recipe.regulariser["lam"], run.recipe.regulariser["c"]) for run in study("grid_min_exp")}
    assert grid == {(lam, c) for lam in (16, 32, 64) for c in (1, 2, 4)}


@pytest.mark.parametrize("name", ["search_cifar10", "search_cifar100"])
def test_a_search_looks_at_the_other_half_of_the_test_images(name):
    assert study(name) == study(name, "tuned")
    dataset, searched = STUDIES[name]["dataset"], [run.recipe for run in study(name)]
    assert {recipe.half for recipe in searched} == {"search"}
    assert {(recipe.method, recipe.epochs) for recipe in searched} == {("reference", 0), ("control", 3), ("amm", 3)}
    chosen = make_recipe(dataset, "resnet20", "amm", "tuned", half="search", epochs=3)
    assert chosen in searched and make_recipe(dataset, "resnet20", "amm", "tuned").half == "report"


def test_what_starts_from_an_untrained_reference_is_shared():
    wanted = study("search_cifar10")
    shares = [share(wanted, part, 2) for part in (1, 2)]
    assert sorted(map(len, shares)) == [5, 6] and {*shares[0], *shares[1]} == set(wanted)


@pytest.mark.parametrize("names", [("grid_cifar10", "grid_cifar10_d"), ("grid_svhn", "grid_svhn_c")])
def test_the_recipes_take_the_best_of_the_search(names):
    cells = [run for name in names for run in study(name, "short") if run.recipe.method == "amm"]
    best = min(cells, key=lambda run: load_run(*run).metrics["error"]).recipe
    assert best.regulariser == make_recipe(best.dataset, best.arch, "amm", "short").regulariser


@pytest.mark.parametrize("name", ["search_cifar10"])
def test_at_the_tuned_scale_they_take_the_largest_margin_whose_error_is_not_above_the_controls(name):
    found = {job.recipe: run.metrics for job in study(name) if (run := load_run(*job))}
    controls = {recipe.lr: metrics["error"] for recipe, metrics in found.items() if recipe.method == "control"}
    cells = {
        recipe: metrics["margin"]
        for recipe, metrics in found.items()
        if recipe.method == "amm" and metrics["error"] <= controls[recipe.lr]
    }
    best = max(cells, key=cells.__getitem__)
    chosen = make_recipe(best.dataset, best.arch, "amm", "tuned")
    assert (best.regulariser, best.lr) == (chosen.regulariser, chosen.lr)


def test_the_systems_take_the_best_of_their_search():
    found = {}
    for job in study("search_systems"):
        found.setdefault(job.recipe.method, []).append((load_run(*job), job.recipe.arguments))
    complete = {method: trials for method, trials in found.items() if all(run for run, _ in trials)}
    assert len(complete) >= 7 and {len(trials) for trials in found.values()} == {6}
    for method, trials in complete.items():
        _, best = min(trials, key=lambda trial: trial[0].metrics["error"])
        chosen = make_recipe("mnist", "mlp", method, "short").arguments
        assert {**best, "kl": 0} == {**chosen, "kl": 0}  # whose weight goes with the number of images


def test_studies_share_their_runs():
    for scale in ("full", "short"):
        whole = [run for run in study("table2", scale) if run.seed < 2]
        assert set(whole) <= set(study("fig4", scale))
        assert {run for run in whole if run.recipe.method != "no_high_order"} <= set(study("fig5", scale))
        assert set(study("table2", scale)) >= {run for run in study("table3", scale) if run.recipe.arch == "mlp"}
    assert study("fig2") == study("table1")
    assert study("fig3") == study("table2")


def test_every_published_number_of_ours_has_its_runs():
    settings = {"train": "train_size", "noisy": "noisy"}
    table = Path(__file__).parents[1] / "results" / "paper.csv"
    rows = [row for row in csv.DictReader(table.open(encoding="utf-8")) if row["competitor"] == "false"]
    assert {row["source"] for row in rows} >= TEXT_ONLY
    seen = set()
    for row in rows:
        if row["source"] in TEXT_ONLY:
            continue
        name = row["source"].removesuffix(" text").replace("Fig. ", "fig").replace("Table ", "table")
        setting = dict(part.split("=") for part in row["condition"].split())
        overrides = {settings[key]: int(value) for key, value in setting.items()}
        recipe = make_recipe(row["dataset"], row["arch"], row["method"], "full", **overrides)
        assert recipe in [run.recipe for run in study(name, "full")], row
        seen.add(name)
    assert seen == {f"table{n}" for n in range(1, 8)} | {"fig1", "fig3", "fig4", "fig5"}


@pytest.mark.usefixtures("own_folders")
def test_a_dry_run_lists_what_is_missing_and_trains_nothing(monkeypatch, capsys):
    monkeypatch.setattr(cli, "core_seconds", lambda jobs: 3600.0 * len(jobs))
    jobs = study("table2", "short")
    assert main(["study", "table2", "--scale", "short", "--dry-run"]) == 0
    *names, total = capsys.readouterr().out.splitlines()
    assert names == [run_name(*job) for job in jobs]
    assert total == f"{len(jobs)} of {len(jobs)} runs are missing: about {len(jobs):.1f} core hours on this machine"
