"""Facts about the command line: it trains, measures and stores, and what is wrong ends in one line with the choices."""

import argparse
import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ammlib import __version__, cli
from ammlib.cli import main, parse_setting, parser, recipe_of
from ammlib.data.datasets import load_data
from ammlib.data.registry import DATASETS
from ammlib.margin.margins import margins
from ammlib.models import make_model
from ammlib.models.weights import save_weights
from ammlib.training import runs
from ammlib.training.evaluate import shared_margins
from ammlib.training.prepare import new_model
from ammlib.training.recipes import make_recipe, reference_of
from ammlib.training.runs import load_run, run_path, weights_path
from ammlib.training.studies import share, study
from ammlib.training.train import Training

COMMANDS = ["data", "train", "study", "compare", "margin", "bench", "scaling", "sample", "readme", "reproduce"]


pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def call(capsys):
    """Run a command: its exit code, output and messages."""

    def run(text):
        capsys.readouterr()
        try:
            code = main(text.split())
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


def subcommands():
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices


# ---- help


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command, call):
    code, out, err = call(f"{command} --help")
    assert (code, err) == (0, "") and out.startswith(f"usage: python -m ammlib {command} ")
    assert command in call("--help")[1].split()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_explained(command):
    assert set(subcommands()) == set(COMMANDS)
    assert not [action.dest for action in subcommands()[command]._actions if not action.help]


def test_the_version_is_the_packages(call):
    assert call("--version")[:2] == (0, f"ammlib {__version__}\n")


# ---- errors


@pytest.mark.parametrize("option", ["margin --samples", "margin --steps", "bench --repeats", "sample margins --images"])
@pytest.mark.parametrize("count", ["0", "-1", "1.5", "one"])
def test_a_count_is_a_whole_number_from_1_on(call, option, count):
    code, _, err = call(f"{option} {count}")
    assert code == 2 and f"a whole number from 1 on, got '{count}'" in err


@pytest.mark.parametrize("seed", ["-1", "1.5", "one"])
def test_a_seed_is_a_whole_number_from_0_on(call, seed):
    code, _, err = call(f"train --seed {seed}")
    assert code == 2 and f"a seed is a whole number from 0 on, got '{seed}'" in err


@pytest.mark.parametrize(
    "command, reasons",
    [
        ("data nope", ["'nope'", "mnist, cifar10", "digits"]),
        ("train --dataset nope", ["data set 'nope'", "mnist, cifar10", "digits"]),
        ("train --dataset digits --arch nope", ["arch for digits 'nope'", "mlp"]),
        ("train --dataset digits --method nope", ["method 'nope'", "reference, control, amm"]),
        ("train --dataset digits --scale nope", ["scale 'nope'", "full, short, tuned, auto"]),
        ("train --dataset mine --family nope", ["family 'nope'", "mnist, cifar, digits"]),
        ("train --dataset digits --set nope=1", ["setting 'nope'", "epochs", "lam"]),
        ("train --dataset digits --set epochs", ["--set takes name=value", "'epochs'"]),
        ("train --dataset digits --set lr=fast", ["lr must be float", "'fast'"]),
        ("train --dataset digits --set lr=NaN", ["lr must be finite"]),
        ("train --dataset digits --set batch=0", ["batch must be at least 1, got 0"]),
        ("train --dataset digits --set validation=true", ["cannot hold out 5000 of 1437"]),
        ("train --dataset digits --set train_size=5000", ["1437", "5000"]),
        ("train --dataset digits --set crop=resize36", ["32 x 32", "8 x 8"]),
        ("train --dataset digits --set arch=lenet", ["--set cannot change arch; use --arch"]),
        ("train --dataset digits --family cifar", ["digits has its own recipes", "'cifar'"]),
        ("train --dataset digits32 --arch resnet20 --set lam=-1", ["lam must be", "-1"]),  # before its reference trains
        ("margin --dataset digits --attack nearest", ["attack 'nearest'", "deepfool, tight"]),
        ("bench --parts deepfool --arch resnet20", ["nothing to measure on resnet20", "deepfool: mlp, lenet"]),
        ("study table1 --only mnist/mlp/nope", ["no run 'mnist/mlp/nope' in table1"]),
        ("study nope", ["study 'nope'", "table1, table2, fig4"]),
        ("study table1 --scale nope", ["scale 'nope'", "full, short, tuned, auto"]),
        ("compare nope", ["study 'nope'", "table1, table2, fig4"]),
        ("margin --dataset digits --method nope", ["method 'nope'", "reference, control, amm"]),
        *(
            (f"study table1 --part {part}", ["--part", "1/2", part])
            for part in ("3/2", "0/2", "1/0", "x", "1", "1/2/3")
        ),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(command, reasons, call, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "run", lambda *_: pytest.fail("training began"))
    code, _, err = call(command)
    assert code == 2
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    assert all(reason in err for reason in reasons), err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["", "nope", "train --seed x", "train --nope", "bench --arch nope"])
def test_what_is_no_command_shows_the_usage(command, call):
    code, _, err = call(command)
    assert code == 2 and err.startswith("usage: python -m ammlib") and "error:" in err


def test_a_folder_that_cannot_be_written_is_named_in_one_line(call, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AMMLIB_CHECKPOINTS", str(tmp_path / "file"))
    code, _, err = call("train --dataset digits --method reference --set epochs=1")
    assert code == 2 and "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: ") and str(tmp_path / "file") in err


def test_a_full_disk_says_which_file_could_not_be_written(call, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = call("train --dataset digits --method reference --set epochs=1")
    assert code == 2
    assert "No space left on device" in err.splitlines()[-1] and str(tmp_path / "checkpoints") in err.splitlines()[-1]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_damaged_checkpoint_is_named_in_one_line(call):
    recipe = make_recipe("digits", "mlp", "reference", epochs=1)
    path = runs.checkpoint_path(recipe, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"garbage")
    code, _, err = call("train --dataset digits --method reference --set epochs=1")
    assert code == 2 and err.startswith(f"error: {path} is damaged")


def test_a_loss_that_is_not_finite_is_reported_with_its_step(call):
    code, _, err = call("train --dataset digits --method amm --set epochs=1 lr=1e30")
    assert code == 2 and "epoch 1, step 2" in err.splitlines()[-1] and "Traceback" not in err


# ---- data


def test_data_prints_the_sizes(call):
    code, out, _ = call("data digits digits32")
    assert code == 0 and out.splitlines() == [
        "Dataset(digits: 1437 train, 360 test, 1x8x8, 10 classes)",
        "Dataset(digits32: 1437 train, 360 test, 3x32x32, 10 classes)",
    ]


# ---- train


def test_train_stores_the_run_with_its_settings_and_then_shows_it(call):
    command = "train --dataset digits --arch mlp --method amm --seed 2 --set epochs=1 lam=4 train_size=60"
    recipe = make_recipe("digits", "mlp", "amm", epochs=1, lam=4.0, train_size=60)
    code, out, _ = call(command)
    run = load_run(recipe, 2)
    assert code == 0 and run.recipe.regulariser["lam"] == 4.0 and len(run.history) == 1
    error, margin = run.metrics["error"], run.metrics["margin"]
    line = f"digits/mlp/amm, seed 2: error {error:.2f} %, margin {margin:.3f}"
    assert "full scale, 1 epochs, on" in out.splitlines()[0]
    assert out.splitlines()[1].startswith(line) and out.splitlines()[1].endswith(str(run_path(recipe, 2)))
    code, out, err = call(command)
    assert (code, err) == (0, "") and out == f"{line} (stored) {run_path(recipe, 2)}\n"


def test_force_trains_what_is_stored(call):
    command = "train --dataset digits --method reference --set epochs=1 train_size=60"
    path = run_path(make_recipe("digits", "mlp", "reference", epochs=1, train_size=60), 0)
    assert call(command)[0] == 0
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "metrics": {"error": 50.0, "margin": 0.0}}))
    assert "error 50.00 %" in call(command)[1]
    assert "error 50.00 %" not in call(f"{command} --force")[1]
    assert json.loads(path.read_text())["metrics"] == stored["metrics"]


@pytest.mark.parametrize(
    "text, value",
    [
        ("lr=1e-3", 0.001),
        ("epochs=3", 3),
        ("train_size=None", None),
        ("crop=null", None),
        ("high_order=False", False),
        ("flip=true", True),
        ("decay=[[1,0.5]]", [[1, 0.5]]),
        ("shrinkage=inv", "inv"),
        ("crop=a=b", "a=b"),
    ],
)
def test_settings_are_read_as_json_or_words(text, value):
    assert parse_setting(text) == (text.partition("=")[0], value)


def test_a_users_own_images_take_the_recipes_of_their_family(call, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path))
    code, out, err = call("train --dataset mine --family digits --method amm --set epochs=1")
    assert code == 0, err
    assert out.splitlines()[-1].startswith("mine/mlp/amm, seed 0: error")


# ---- study


def fake(recipe, seed, force=False, callback=None):
    run = runs.Run(recipe, seed, {"error": 1.0, "margin": 1.0}, [], 0, "", {}, "cpu", 1.0)
    runs.store_run(run)
    return run


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_parts_of_a_study_share_its_runs(parts, call, monkeypatch):
    monkeypatch.setattr(cli, "run_or_load", fake)
    shares = [call(f"study table1 table2 --scale short --part {part}/{parts}")[1] for part in range(1, parts + 1)]
    done = [{line.split(": error")[0] for line in out.splitlines() if ": error" in line} for out in shares]
    expected = {f"{recipe.key}, seed {seed}" for name in ("table1", "table2") for recipe, seed in study(name, "short")}
    assert set().union(*done) == expected and sum(map(len, done)) == len(expected)  # all, each once
    assert max(map(len, done)) - min(map(len, done)) <= 1


def test_the_parts_of_a_study_keep_a_reference_with_what_starts_from_it():
    wanted = study("table4", "short")
    shares = [share(wanted, part, 3) for part in (1, 2, 3)]
    assert sorted(sum(shares, []), key=wanted.index) == wanted
    for runs_of_part in shares:
        for recipe, seed in runs_of_part:
            assert recipe.start == "scratch" or (reference_of(recipe), seed) in runs_of_part


def test_one_run_of_a_study_is_found_by_its_name(call, monkeypatch):
    monkeypatch.setattr(cli, "run_or_load", fake)
    recipe, seed = study("table1", "short")[4]
    code, out, _ = call(f"study table1 --scale short --only {runs.run_name(recipe, seed)}")
    assert code == 0 and [line for line in out.splitlines() if ": error" in line] == out.splitlines()[1:]
    assert out.splitlines()[1].startswith(f"{recipe.key}, seed {seed}: error")


def test_a_study_shows_what_is_stored_and_trains_what_is_missing(call, monkeypatch):
    runs_of_table2 = study("table2", "short")
    for recipe, seed in runs_of_table2[:3]:
        fake(recipe, seed)
    asked = []
    monkeypatch.setattr(cli, "run_or_load", lambda *run, **_: load_run(*run) or asked.append(run) or fake(*run))
    code, out, _ = call("study table2 --scale short")
    assert code == 0 and out.count("(stored)") == 3
    assert asked == [tuple(run) for run in runs_of_table2[3:]]


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m ammlib compare table1 table3 table4 table6 --scale short | head -1"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100)
    assert found.stdout == "table1\n" and found.stderr == ""


# ---- margin


def test_margin_prints_the_summary_of_a_stored_model(call):
    recipe = make_recipe("digits", "mlp", "amm")
    model = new_model(recipe, 4).eval()
    save_weights(weights_path(recipe, 4), model.state_dict())
    code, out, _ = call("margin --dataset digits --method amm --seed 4")
    data = load_data("digits")
    summary = margins(model, (data.x_test.float() / 255, data.y_test), progress=False).summary()
    shown = {name: float(value) for name, value in map(str.split, out.splitlines())}
    assert code == 0 and shown == pytest.approx(summary, abs=6e-5) and shown.keys() == summary.keys()
    code, out, _ = call("margin --dataset digits --method amm --seed 4 --samples 50 --steps 1")
    assert code == 0 and "samples          50" in out.splitlines()[0]
    code, out, _ = call("margin --dataset digits --method amm --seed 4 --attack tight --steps 3")
    assert code == 0 and float(out.split("mean")[1].split()[0]) < summary["mean"]


def test_margins_of_imagenet_are_in_its_units(call, tiny_images, tiny_weights):
    recipe = make_recipe("tiny", "resnet18", "reference", "short", "imagenet")
    save_weights(weights_path(recipe, 0), tiny_weights)
    command = "margin --dataset tiny --family imagenet --arch resnet18 --method reference --scale short"
    code, out, err = call(command)
    model = make_model("imagenet", "resnet18", 3)
    model.load_state_dict(tiny_weights)
    units = DATASETS["imagenet"].std
    expected = shared_margins(model.eval(), load_data("tiny").x_test, progress=False, std=units).norm.mean()
    assert code == 0, err
    assert float(out.split("mean")[1].split()[0]) == pytest.approx(float(expected), abs=1e-3)


def test_settings_may_be_given_one_by_one():
    args = parser().parse_args(["train", "--dataset", "digits", "--set", "epochs=3", "--set", "lam=8", "c=4"])
    recipe = recipe_of(args)
    assert recipe.epochs == 3 and (recipe.regulariser["lam"], recipe.regulariser["c"]) == (8, 4)
