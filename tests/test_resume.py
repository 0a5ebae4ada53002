"""A run that was stopped anywhere, by a signal, a kill or between two files, ends as if it was not."""

import multiprocessing
import os
import random
import re
import runpy
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import folders
from trainings import batch_norm_net, result, tiny

from ammlib.cli import main
from ammlib.data.files import locked
from ammlib.models import make_model
from ammlib.training import prepare
from ammlib.training import train as train_module
from ammlib.training.checkpoint import save_checkpoint
from ammlib.training.execute import run_or_load
from ammlib.training.interrupt import stop_between_steps
from ammlib.training.prepare import prepare_data
from ammlib.training.runs import checkpoint_path
from ammlib.training.train import Training, train

processes = multiprocessing.get_context("forkserver")  # imports once, so that each process starts quickly
processes.set_forkserver_preload(["ammlib.cli", "sklearn.datasets", "torch._dynamo", "pytest"])

SETTINGS = ["epochs=8", "margin_size=100"]
COMMAND = ["train", "--dataset", "digits", "--arch", "mlp", "--method", "amm", "--seed", "1", "--set", *SETTINGS]


pytestmark = pytest.mark.usefixtures("own_folders")


class Keeping(Training):
    """Saves after every step and keeps every checkpoint."""

    def save(self):
        super().save()
        shutil.copy(self.checkpoint, self.checkpoint.with_name(f"{self.epoch}-{self.step}.pt"))

    def take_step(self, *batch):
        super().take_step(*batch)
        self.save()


@pytest.mark.parametrize("net", [make_model, batch_norm_net])
@pytest.mark.parametrize("method, changes", [("reference", {}), ("amm", {}), ("amm", {"freeze_bn": True})])
def test_resuming_from_any_step_equals_the_uninterrupted_run(method, changes, net, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "make_model", net)
    recipe = tiny(method, **changes)
    data = prepare_data(recipe)
    uninterrupted = result(train(recipe, 0, data=data, progress=False))
    Keeping(recipe, 0, data, checkpoint=tmp_path / "last.pt").run(progress=False)
    for moment in ("0-1", "0-2", "0-3", "1-0", "1-1", "1-2", "1-3", "2-0"):  # epochs and steps done
        resumed = train(recipe, 0, data=data, checkpoint=tmp_path / f"{moment}.pt", progress=False)
        assert result(resumed) == uninterrupted, moment


@pytest.mark.parametrize("seconds, saves", [(-1.0, 6 + 2), (120.0, 2)])
def test_checkpoints_are_saved_when_due_and_after_every_epoch(seconds, saves, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(train_module, "CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(Training, "save", lambda self: saved.append((self.epoch, self.step)))
    train(tiny(), 0, progress=False)
    assert len(saved) == saves and {(1, 0), (2, 0)} <= set(saved)


def test_checkpoints_are_due_by_the_clock_also_where_epochs_are_not_stored(tmp_path, monkeypatch):
    clock, saved = iter(range(0, 10**6, 50)), []
    monkeypatch.setattr(train_module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(train_module, "save_checkpoint", lambda *_: saved.append(1))
    monkeypatch.setattr(Training, "every", 100)
    train(tiny(epochs=3), 0, checkpoint=tmp_path / "c.pt", progress=False)
    assert len(saved) > 3


def outcome(root):
    """The bytes of the weights, and those of the run file but for its wall-clock time; no checkpoint is left."""
    (weights,), (run,) = Path(root).rglob("*.safetensors"), Path(root).rglob("*.json")
    text, replaced = re.subn(r'"(wall_|cpu_)?seconds": [\d.]+', "", run.read_text())
    assert replaced == 3 and not list(Path(root).rglob("*.pt"))
    return weights.read_bytes(), text


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    root = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in folders(root).items():
            patch.setenv(name, value)
        assert main(COMMAND) == 0
    return outcome(root)


def spawn(target, *args):
    process = processes.Process(target=target, args=args)
    process.start()
    return process


def train_until_killed(root, pipe, most):
    """Run the command with a checkpoint after every step; tell of every step, and wait after `most`."""
    os.environ |= folders(root)
    torch.set_num_threads(1)
    train_module.CHECKPOINT_SECONDS = 0.0
    take_step, taken = Training.take_step, []

    def tell(*args):
        if len(taken) == most:
            signal.pause()
        take_step(*args)
        taken.append(pipe.send(None))

    Training.take_step = tell
    main(COMMAND)


def test_a_training_killed_at_ten_random_moments_ends_like_the_uninterrupted_one(tmp_path, uninterrupted):
    rng = random.Random(0)
    for _ in range(10):
        steps = rng.randint(1, 5)
        ours, theirs = processes.Pipe(duplex=False)
        process = spawn(train_until_killed, tmp_path, theirs, steps + 4)
        theirs.close()
        for _ in range(steps):
            ours.recv()
        time.sleep(rng.uniform(0, 0.03))  # it computes a step, writes a checkpoint or evaluates an epoch
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    (checkpoint,) = tmp_path.rglob("*.pt")
    assert torch.load(checkpoint, weights_only=True)["state"]["epoch"] >= 1
    assert main(COMMAND) == 0
    assert outcome(tmp_path) == uninterrupted


def die_after_write(root, number):
    """Run a short training and be killed as soon as so many files were written."""
    os.environ |= folders(root)
    torch.set_num_threads(1)
    replace, written = os.replace, []

    def replace_and_die(*args):
        written.append(replace(*args))
        if len(written) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_and_die
    run_or_load(tiny(epochs=1), 0, progress=False)


def test_a_kill_between_any_two_files_loses_nothing(tmp_path):
    spawn(die_after_write, tmp_path / "whole", None).join()
    for number, last in enumerate(["checkpoint", "weights", "run"], start=1):
        process = spawn(die_after_write, tmp_path / last, number)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        (checkpoint,) = (tmp_path / last).rglob("*.pt")
        if last == "run":  # all is stored and nothing left to do
            checkpoint.unlink()
        else:
            spawn(die_after_write, tmp_path / last, None).join()
        assert outcome(tmp_path / last) == outcome(tmp_path / "whole")


def run_module(root):
    """`python -m ammlib ...` with its messages in a file."""
    os.environ |= folders(root)
    torch.set_num_threads(1)
    sys.argv, sys.stderr = ["ammlib", *COMMAND], (root / "stderr").open("w")
    runpy.run_module("ammlib", run_name="__main__")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_the_same_command_goes_on(number, tmp_path, uninterrupted):
    process = spawn(run_module, tmp_path)
    while not list(tmp_path.rglob("*.pt")):
        assert process.is_alive()
        time.sleep(0.005)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 130
    shown = (tmp_path / "stderr").read_text()
    assert (
        shown.endswith("stopped; the same command, without --force, goes on from the checkpoint\n")
        and "Traceback" not in shown
    )
    (checkpoint,) = tmp_path.rglob("*.pt")
    assert torch.load(checkpoint, weights_only=True)["state"]["step"] > 0  # within an epoch, not at its end
    assert main(COMMAND) == 0
    assert outcome(tmp_path) == uninterrupted


def test_the_second_ctrl_c_interrupts_at_once():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_between_steps() as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ctrl_c_during_the_last_evaluation_is_not_lost(tmp_path, monkeypatch):
    end_epoch = Training.end_epoch

    def interrupted(self):
        if self.epoch == 1:
            signal.raise_signal(signal.SIGINT)
        end_epoch(self)

    uninterrupted = result(train(tiny(), 0, progress=False))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "end_epoch", interrupted)
        train(tiny(), 0, checkpoint=tmp_path / "c.pt", progress=False)
    assert result(train(tiny(), 0, checkpoint=tmp_path / "c.pt", progress=False)) == uninterrupted


def test_training_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(result(train(tiny(), 0, progress=False))))
    thread.start()
    thread.join()
    assert results == [result(train(tiny(), 0, progress=False))]


def test_a_finished_checkpoint_needs_no_step(tmp_path, monkeypatch):
    first = result(train(tiny(), 0, checkpoint=tmp_path / "c.pt", progress=False))
    monkeypatch.setattr(Training, "take_step", lambda *_: pytest.fail("there was nothing to train"))
    assert result(train(tiny(), 0, checkpoint=tmp_path / "c.pt", progress=False)) == first


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


def test_times_go_on_after_a_kill(tmp_path):
    path = tmp_path / "c.pt"
    train(tiny(), 0, checkpoint=path, progress=False)
    stored = torch.load(path, weights_only=True)
    stored["state"]["times"] = (1000.0, 500.0)
    save_checkpoint(path, stored["identity"], stored["state"])
    wall, cpu = train(tiny(), 0, checkpoint=path, progress=False).took()
    assert 1000 < wall < 1100 and 500 < cpu < 600
