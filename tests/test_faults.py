"""What is resumed, stored and loaded is what was saved, or one line says what is wrong and what to do."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import gradients
from trainings import result, tiny

from ammlib import AMM, cli, deepfool, margins
from ammlib.cli import main
from ammlib.data import files
from ammlib.data.datasets import load_data
from ammlib.data.files import locked, read_checked, tensors_digest, write_atomically, write_checked
from ammlib.data.sources import DataError
from ammlib.experiments import soak
from ammlib.experiments.cost.screening import cosine
from ammlib.margin.baselines import Refined
from ammlib.margin.parts import AGGREGATION
from ammlib.margin.tight import tight
from ammlib.models.weights import save_weights, weights_digest
from ammlib.report import frame
from ammlib.training import execute, logs, prepare
from ammlib.training.checkpoint import CheckpointError, before, load_checkpoint, save_checkpoint
from ammlib.training.execute import run_or_load, trained_model
from ammlib.training.logs import CsvLog
from ammlib.training.prepare import new_model
from ammlib.training.recipes import make_recipe, reference_of
from ammlib.training.runs import checkpoint_path, load_run, run_name, run_path, weights_path
from ammlib.training.studies import study
from ammlib.training.train import Training, train

pytestmark = pytest.mark.usefixtures("own_folders")

OWN = ["train", "--dataset", "own", "--family", "digits", "--set", "epochs=1"]


@pytest.fixture
def checkpoint(tmp_path):
    """The last checkpoint of a training of two epochs, with the one before it beside it; and how the training ended."""
    path = tmp_path / "c.pt"
    return path, result(train(tiny(), 0, checkpoint=path, progress=False))


def flip(path, rng):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def own_data(folder, seed=0, **changes):
    """The user's own images, at `<folder>/own.npz`."""
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(seed).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    y = np.arange(40) % 4
    np.savez(folder / "own.npz", **{"x_train": x, "y_train": y, "x_test": x, "y_test": y, **changes})


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path / "data"))
    own_data(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def refused(capsys, monkeypatch):
    """A command that ends in one line, before any training."""

    def check(command, *reasons):
        monkeypatch.setattr(execute, "train", lambda *_, **__: pytest.fail("training began"))
        assert main(command if isinstance(command, list) else command.split()) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        assert all(str(reason) in error for reason in reasons), error

    return check


# ---- checkpoints


def test_a_flipped_bit_in_a_checkpoint_is_never_resumed(checkpoint):
    path, ended = checkpoint
    good, rng = path.read_bytes(), random.Random(0)
    for _ in range(40):
        flip(path, rng)
        try:
            resumed = train(tiny(), 0, checkpoint=path, progress=False)
        except CheckpointError as error:
            assert f"{path} is damaged" in str(error) and "delete it to go on from the one before" in str(error)
        else:  # a bit of the seal's own name: the content is whole
            assert result(resumed) == ended
        path.write_bytes(good)


def test_without_the_last_checkpoint_the_one_before_leads_to_the_same_end(checkpoint):
    path, ended = checkpoint
    assert load_checkpoint(path, torch.load(path, weights_only=True)["identity"])["epoch"] == 2
    path.unlink()
    assert torch.load(before(path), weights_only=True)["state"]["epoch"] == 1
    assert result(train(tiny(), 0, checkpoint=path, progress=False)) == ended


def test_checkpoints_of_earlier_versions_are_resumed(checkpoint):
    path, ended = checkpoint
    stored = torch.load(before(path), weights_only=True)
    del stored["identity"]["data"]
    torch.save(stored, path)
    assert result(train(tiny(), 0, checkpoint=path, progress=False)) == ended


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda state: state.update(epoch=999), "epoch 999"),
        (lambda state: state.update(step=-1), "step -1"),
        (lambda state: state.update(step="one"), "damaged"),
        (lambda state: state.pop("history"), "history"),
        (lambda state: state["model"].popitem(), "Missing key"),
        (lambda state: next(iter(state["model"].values())).fill_(torch.nan), "not finite"),
        (lambda state: state["optimizer"].pop("state"), "state"),
    ],
)
def test_a_well_formed_checkpoint_with_wrong_content_is_refused(change, reason, checkpoint):
    path, _ = checkpoint
    stored = torch.load(path, weights_only=True)
    change(stored["state"])
    save_checkpoint(path, stored["identity"], stored["state"])
    with pytest.raises(CheckpointError, match=rf"(?s)^[^\n]*{reason}[^\n]*; delete it to [^\n]*$"):
        train(tiny(), 0, checkpoint=path, progress=False)


def test_what_is_checked_is_read_as_it_was_written(tmp_path):
    for content in (b"", b"content", files.SEAL * 9):
        write_checked(tmp_path / "file", content)
        assert read_checked(tmp_path / "file") == content


# ---- weights


@pytest.mark.parametrize("damage", ["another net's", "truncated", "garbage", "a flipped bit", "a folder"])
def test_weights_are_those_of_their_run_wherever_they_are_loaded(damage, refused):
    reference = reference_of(tiny("deep_defense"))
    run_or_load(reference, 0, progress=False)
    path = weights_path(reference, 0)
    content = path.read_bytes()
    if damage == "another net's":
        save_weights(path, new_model(reference, 7).state_dict())
    elif damage == "a flipped bit":
        flip(path, random.Random(1))
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content[:1000] if damage == "truncated" else b"\xff" * 1000)
    with pytest.raises(DataError, match=str(path)):
        trained_model(reference, 0)
    for command in ("margin --dataset digits --method reference", "train --dataset digits --method deep_defense"):
        refused(f"{command} --set train_size=60", path, "delete it")
    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)
    assert weights_digest(trained_model(reference, 0).state_dict()) == load_run(reference, 0).weights


# ---- data


def test_a_run_of_other_data_is_not_taken_for_the_stored_one(own, refused, capsys):
    assert main(OWN) == 0 and main(OWN) == 0
    assert "(stored)" in capsys.readouterr().out
    own_data(own, seed=1)
    refused(OWN, "is of other data than own holds now", "another name", "--force")
    refused(["margin", *OWN[1:]], "is of other data")
    (own / "own.npz").unlink()
    assert main(OWN) == 0  # where there is nothing to compare with, what is stored is shown


def test_a_training_does_not_go_on_with_other_data(own, tmp_path):
    recipe, path = make_recipe("own", "mlp", "amm", family="digits", epochs=1), tmp_path / "c.pt"
    train(recipe, 0, checkpoint=path, progress=False)
    own_data(own, seed=1)
    with pytest.raises(CheckpointError, match="another run: different data"):
        train(recipe, 0, checkpoint=path, progress=False)


def test_run_files_without_the_sum_of_their_data_stay_valid(own):
    recipe = make_recipe("own", "mlp", "amm", family="digits", epochs=1)
    run = run_or_load(recipe, 0, progress=False)
    stored = json.loads(run_path(recipe, 0).read_text())
    assert stored.pop("data") == run.data == load_data("own").digest
    run_path(recipe, 0).write_text(json.dumps(stored))
    own_data(own, seed=1)
    assert run_or_load(recipe, 0).weights == run.weights


def test_the_sum_of_data_sees_one_pixel_the_shape_and_the_order(own):
    first = load_data("own")
    changed = {}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        column = getattr(first, name)
        changed[name] = type(first)(*[column.roll(1) if key == name else value for key, value in vars(first).items()])
    changed["shape"] = type(first)(*(v.view(40, 1, 4, 16) if k == "x_train" else v for k, v in vars(first).items()))
    digests = {data.digest for data in changed.values()}
    assert len(digests) == 5 and first.digest not in digests


@pytest.mark.parametrize(
    "labels, reason",
    [
        (np.zeros(40, int), "2 ... 100,000 classes, here are 1"),
        (np.where(np.arange(40) % 4 == 3, 10**6, np.arange(40) % 4), "of 4 classes, but reach 1000000"),
        (np.array([0, 2**64 - 1] * 20, np.uint64), f"of 2 classes, but reach {2**64 - 1}"),
    ],
)
def test_labels_are_those_of_a_classifier(labels, reason, own, refused):
    own_data(own, y_train=labels)
    refused(OWN, reason, own / "own.npz")


@pytest.mark.parametrize("given", [3, 10**9, 4.5])
def test_a_number_of_classes_that_does_not_fit_is_refused(given, own):
    own_data(own, num_classes=np.array(given))
    with pytest.raises(DataError):
        load_data("own")


def test_the_number_of_classes_may_be_given(own):
    own_data(own, num_classes=np.array(7))
    assert load_data("own").num_classes == 7


def test_images_that_do_not_fit_their_net_are_refused_before_training(own, refused):
    x = np.zeros((40, 20, 20), np.uint8)
    own_data(own, x_train=x, x_test=x)
    for family, usual in (("mnist", "1x28x28"), ("digits", "1x8x8")):
        refused([*OWN[:3], "--family", family, "--set", "epochs=1"], "images of own are 1x20x20", f"takes {usual}")


@pytest.mark.parametrize("name", ["../own", "{root}/own", "sub/own", ".", "..", ""])
def test_a_data_set_is_a_name_and_no_path(name, own, refused):
    name = name.format(root=own)
    for folder in (own, own.parent):
        (folder / "val" / "class").mkdir(parents=True)  # where images of a data set would be
    (own / "sub").mkdir()
    own_data(own / "sub")
    for command in (["data", name], [*OWN[:1], "--dataset", name, *OWN[3:]]):
        refused(command, "unknown data set", repr(name))


# ---- run files


@pytest.mark.parametrize("metrics", ["{}", '{"error": NaN, "margin": 1.0}', '{"error": 1.0, "margin": null}', "[]"])
def test_a_run_file_without_finite_metrics_is_named_in_one_line(metrics, refused):
    path = run_path(tiny("reference"), 0)
    run = run_or_load(tiny("reference"), 0, progress=False)
    path.write_text(run.to_json().replace(json.dumps(run.metrics, indent=1).replace("\n", "\n "), metrics))
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        load_run(tiny("reference"), 0)
    refused("train --dataset digits --method reference --set epochs=2 train_size=60 batch=20", path, "delete it")


@pytest.mark.parametrize(
    "change", [{"recipe": None}, {"recipe": [1]}, {"weights": None}, {"history": None}, {"history": [1]}, {"data": 3}]
)
def test_a_run_file_with_a_field_of_another_kind_is_named_in_one_line(change, refused):
    run, path = run_or_load(tiny("reference"), 0, progress=False), run_path(tiny("reference"), 0)
    path.write_text(json.dumps(json.loads(run.to_json()) | change))
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        frame.history()
    refused("train --dataset digits --method reference --set epochs=2 train_size=60 batch=20", path, "delete it")


def test_a_run_file_of_brackets_is_named(tmp_path):
    path = run_path(tiny(), 0)
    path.parent.mkdir(parents=True)
    path.write_text("[" * 10**5)
    with pytest.raises(ValueError, match=f"{path} is damaged"):
        load_run(tiny(), 0)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AMMLIB_RESULTS", "~/results")
    monkeypatch.setenv("AMMLIB_CHECKPOINTS", "~/checkpoints")
    assert run_path(tiny(), 0).is_relative_to(tmp_path / "results")
    assert checkpoint_path(tiny(), 0).is_relative_to(tmp_path / "checkpoints")


@pytest.mark.parametrize("content", ["", "source,dataset\n"])
def test_an_emptied_table_of_published_numbers_is_named(content, tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "stored_results", lambda: tmp_path)
    (tmp_path / "paper.csv").write_text(content)
    with pytest.raises(ValueError, match=f"{tmp_path / 'paper.csv'} is damaged: no"):
        frame.published()


# ---- folders and disks


@pytest.mark.parametrize("folder", ["results", "checkpoints"])
def test_folders_are_tried_before_training(folder, tmp_path, refused):
    (tmp_path / folder).write_text("a file where a folder should be")
    refused("train --dataset digits --method reference --set epochs=1", tmp_path / folder)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), tmp_path / "no"))
    assert main(["train", "--dataset", "digits", "--method", "reference", "--set", "epochs=1"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "No space left on device" in error and "checkpoints" in error


def test_temporary_files_are_removed_when_they_are_old(tmp_path):
    old, young, other = (tmp_path / name for name in (".c.pt-x.tmp", ".c.pt-y.tmp", ".hidden"))
    for path in (old, young, other):
        path.touch()
    folder = tmp_path / ".mnist-z.tmp"
    folder.mkdir()
    (folder / "half").touch()
    for path in (old, other, folder):
        os.utime(path, (0, time.time() - 2 * files.OLD))
    write_atomically(tmp_path / "c.pt", lambda file: file.write(b"new"))
    assert sorted(os.listdir(tmp_path)) == [".c.pt-y.tmp", ".hidden", "c.pt"]


# ---- one process at a time


def test_of_two_that_are_asked_for_a_run_one_trains_it_and_the_other_takes_it(monkeypatch, capsys):
    trained, run, lock, waiting = [], execute.train, files._lock, threading.Event()

    def slowly(*args, **options):
        trained.append(threading.current_thread())
        assert waiting.wait(60)
        return run(*args, **options)

    def tell(file, busy):
        lock(file, lambda process: (waiting.set(), busy(process)))

    monkeypatch.setattr(execute, "train", slowly)
    monkeypatch.setattr(files, "_lock", tell)
    found = []
    both = [threading.Thread(target=lambda: found.append(run_or_load(tiny(), 0, progress=False))) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(trained) == 1 and found[0] == found[1]
    assert f"digits/mlp/amm, seed 0: process {os.getpid()} on" in capsys.readouterr().err
    assert not list(checkpoint_path(tiny(), 0).parent.glob("*.lock"))


def hold_and_die(path):
    with locked(path, busy=print):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_leaves_no_lock_behind(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=hold_and_die, args=(tmp_path / "run.lock",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and (tmp_path / "run.lock").exists()
    with locked(tmp_path / "run.lock", busy=lambda who: pytest.fail(f"{who} still holds it")):
        assert (tmp_path / "run.lock").read_text().startswith(f"{os.getpid()} on")
    assert not (tmp_path / "run.lock").exists()


def test_what_a_kill_right_after_storing_leaves_is_removed_unless_somebody_trains_the_run_anew():
    run_or_load(tiny(), 0, progress=False)
    checkpoint = checkpoint_path(tiny(), 0)
    lock = checkpoint.with_suffix(".lock")
    leftovers = (checkpoint, before(checkpoint), lock)
    for path in leftovers:
        path.touch()
    with locked(lock, busy=pytest.fail):
        run_or_load(tiny(), 0, progress=False)
        assert checkpoint.exists() and before(checkpoint).exists()
    run_or_load(tiny(), 0, progress=False)
    assert not any(path.exists() for path in leftovers)


def test_a_training_by_force_that_was_stopped_goes_on(monkeypatch):
    first, take_step = run_or_load(tiny(), 0, progress=False), Training.take_step
    taken = []

    def counted(self, *batch):
        taken.append(self.steps_done)
        take_step(self, *batch)
        if len(taken) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "take_step", counted)
    with pytest.raises(KeyboardInterrupt):
        run_or_load(tiny(), 0, force=True, progress=False)
    with locked(checkpoint_path(tiny(), 0).with_suffix(".lock"), busy=pytest.fail):  # while somebody is at it
        assert run_or_load(tiny(), 0, progress=False) == first
    assert run_or_load(tiny(), 0, progress=False).weights == first.weights and taken == [0, 1, 2, 3, 4, 5]
    assert not checkpoint_path(tiny(), 0).exists()


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    inside, most = [], []

    def enter():
        for _ in range(20):
            with locked(tmp_path / "lock", busy=lambda who: None):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80 and set(most) == {1}


# ---- measuring


@pytest.mark.parametrize("size", [1.0, 1e-8, 1e-30, 1e-200, 1e200])
def test_the_cosine_is_right_for_vectors_of_all_sizes(size):
    a, b = torch.tensor([3.0, 4.0], dtype=torch.float64) * size, torch.tensor([4.0, 3.0], dtype=torch.float64) * size
    assert cosine(a, a) == pytest.approx(1) and cosine(a, -a) == pytest.approx(-1)
    assert cosine(a, b) == pytest.approx(0.96) and cosine(a, torch.zeros_like(a)) == 0


def test_equal_tensors_have_equal_sums():
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2)}
    assert tensors_digest(tensors) == tensors_digest(dict(reversed(tensors.items())))


# ---- settings with which AMM would do nothing


@pytest.mark.parametrize("setting", ["lam=50", "lam=1000", "overshoot=1e30", "clip=1e-300", "c=1e300", "d=1e-300"])
def test_settings_that_do_nothing_are_refused(setting, refused):
    refused(f"train --dataset digits --set epochs=1 {setting}", setting.partition("=")[0])


@pytest.mark.parametrize("setting", ["clip_grad=0", "momentum=1", "lr=1e300", "weight_decay=1e300", "decay=[[0,-1]]"])
def test_steps_that_lead_nowhere_are_refused(setting, refused):
    refused(f"train --dataset digits --set {setting}", "rate" if "decay=[" in setting else setting.partition("=")[0])


@pytest.mark.parametrize("value", ['{"name":"amm"}', '{"name":"amm","lam":"x"}', '{"lam":1}', "[1]", "amm"])
def test_a_regulariser_is_not_replaced_as_a_whole(value, refused):
    refused(["train", "--dataset", "digits", "--set", f"regulariser={value}"], "regulariser")


@pytest.mark.parametrize("seed", [2**64, 2**70])
def test_a_seed_has_64_bits(seed, refused):
    refused(f"train --dataset digits --seed {seed} --set epochs=1", seed)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 5))


X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 5


@pytest.mark.parametrize("call", [deepfool, tight, margins, lambda model, x: AMM()(model, x, Y)])
def test_a_function_is_no_classifier(call):
    with pytest.raises(TypeError, match="a classifier is an nn.Module, got a function"):
        call(lambda x: x, X)


@pytest.mark.parametrize("classes", [2, 9])
@pytest.mark.parametrize("screen", ["auto", None])
def test_logits_of_another_model_are_refused(classes, screen):
    with pytest.raises(ValueError, match=f"logits are of {classes} classes, the model gives 5"):
        AMM(screen=screen)(net(), X, Y % 2, logits=torch.randn(12, classes))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_margins_are_of_the_precision_of_x_whatever_the_default_is(dtype, default):
    model, x = net().to(dtype), X.to(dtype)
    torch.set_default_dtype(default)
    try:
        assert tight(model, x).norm.dtype == dtype
        term = Refined()(model, x, Y)
    finally:
        torch.set_default_dtype(torch.float32)
    assert term.dtype == dtype and all(g.isfinite().all() for g in gradients(term, model))


# ---- trainings that look dead, their times and values


def test_a_training_that_learns_says_nothing_and_how_long_it_took():
    run = run_or_load(tiny(epochs=4, train_size=300), 0, progress=False)
    assert run.warnings == [] and "warnings" not in json.loads(run.to_json())
    assert 0 < run.seconds <= run.wall_seconds + 0.1 and run.cpu_seconds > 0


def no_gradient(monkeypatch):
    monkeypatch.setattr(Training, "has_gradient", lambda *_: False)
    return "amm", "the regulariser has no gradient in epoch 1"


def nothing_kept(monkeypatch):
    monkeypatch.setitem(AGGREGATION, "min", lambda key, y: torch.zeros_like(key, dtype=torch.bool))
    return "amm", "the regulariser kept no sample in epoch 1"


def constant_net(monkeypatch):
    monkeypatch.setattr(prepare, "make_model", lambda *_, **__: torch.nn.Sequential(torch.nn.Flatten(), dead()))
    return "reference", "the error is not below that of a constant, 87.5 %, in epoch 3"


@pytest.mark.parametrize("cause", [no_gradient, nothing_kept, constant_net])
def test_a_training_that_looks_dead_says_so_once(cause, capsys, monkeypatch):
    method, reason = cause(monkeypatch)
    run = run_or_load(tiny(method, epochs=4, lr=0.0), 0)
    assert run.warnings == load_run(run.recipe, 0).warnings == [reason]
    assert f"looks dead={reason}" in capsys.readouterr().err


def dead():
    layer = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(layer.weight)
    layer.bias.data = torch.eye(10)[5]
    return layer


def test_times_go_on_after_a_kill(tmp_path):
    path = tmp_path / "c.pt"
    train(tiny(), 0, checkpoint=path, progress=False)
    stored = torch.load(path, weights_only=True)
    stored["state"]["times"] = (1000.0, 500.0)
    save_checkpoint(path, stored["identity"], stored["state"])
    wall, cpu = train(tiny(), 0, checkpoint=path, progress=False).took()
    assert 1000 < wall < 1100 and 500 < cpu < 600


def test_a_callback_gets_the_values_of_every_step_and_epoch():
    calls = []
    training = train(tiny(), 0, progress=False, callback=lambda *call: calls.append(call))
    steps = [(number, values) for kind, number, values in calls if kind == "step"]
    assert [number for number, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert all(set(values) == {"loss", "error", "regulariser", "kept", "kept_margin"} for _, values in steps)
    assert [(number, values) for kind, number, values in calls if kind == "epoch"] == [
        (3 * (i + 1), entry) for i, entry in enumerate(training.history)
    ]
    assert sum(values["loss"] for _, values in steps[:3]) / 3 == pytest.approx(training.history[0]["loss"])


def test_a_log_has_each_step_once_also_after_a_resume(tmp_path):
    for first in (1, 3):  # the second process goes on after step 2
        log = CsvLog(tmp_path)
        for step in range(first, first + 3):
            log("step", step, {"loss": step / 10 + first, "margin": None})
    rows = (tmp_path / "step.csv").read_text().split()
    assert rows == ["steps,loss,margin", "1,1.1,", "2,1.2,", "3,3.3,", "4,3.4,", "5,3.5,"]


@pytest.mark.parametrize("left", [b"", b"steps,lo", b"steps,loss\n1,0.5\n2", b"\xff\n1,2,3\n", b"steps\n1\n"])
def test_a_log_that_was_half_written_does_not_stop_the_training(left, tmp_path):
    (tmp_path / "step.csv").write_bytes(left)
    log = CsvLog(tmp_path)
    for step in (2, 3):
        log("step", step, {"loss": 1.0})
    header, *rows = (tmp_path / "step.csv").read_text().split()
    assert header == "steps,loss" and rows[-2:] == ["2,1.0", "3,1.0"] and len(rows) <= 3


def test_a_log_is_written_beside_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "home", lambda: tmp_path)
    assert (
        main([*["train", "--dataset", "digits", "--log", "csv", "--set", "epochs=2", "train_size=60", "batch=20"]]) == 0
    )
    step, epoch = (list(tmp_path.rglob(f"out/logs/digits/mlp/amm/*/{kind}.csv")) for kind in ("step", "epoch"))
    assert [len(path.read_text().splitlines()) for path in (*step, *epoch)] == [7, 3]


def test_a_dry_run_lists_what_is_missing_and_trains_nothing(monkeypatch, capsys):
    monkeypatch.setattr(cli, "estimate", lambda jobs: 3600.0 * len(jobs))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    jobs = study("table2", "short")
    assert main(["study", "table2", "--scale", "short", "--dry-run"]) == 0
    *names, total = capsys.readouterr().out.splitlines()
    assert names == [run_name(*job) for job in jobs]
    assert total == f"{len(jobs)} of {len(jobs)} runs are missing: about {len(jobs):.1f} core hours on this machine"


# ---- the soak


def test_a_killed_and_a_damaged_training_end_like_the_one_left_alone(tmp_path):
    rng = random.Random(0)
    assert soak.killed(tmp_path / "killed", 0, rng, ("step", "save", "store"))
    assert soak.flipped(tmp_path / "flipped", 0, rng, "*.pt") == (True, True)


def test_the_soak_ends_when_a_training_fails_of_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "train_run", lambda *_: os._exit(3))
    with pytest.raises(RuntimeError, match="a training ended with 3"):
        soak.killed(tmp_path, 0, random.Random(0))


def test_the_docs_show_what_the_soak_has_found():
    measured = json.loads((files.home() / "results" / "bench" / "soak.json").read_text())
    assert soak.table(measured) in (files.home() / "docs" / "robustness.md").read_text()
    assert all(found["lost"] == 0 for found in measured["nets"]["mlp"]["faults"].values())
