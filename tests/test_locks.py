"""Facts about locks: a run has one writer at a time, and a crash leaves no lock behind."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
from trainings import tiny

from ammlib.data import files
from ammlib.data.files import locked
from ammlib.training import execute
from ammlib.training.checkpoint import before
from ammlib.training.execute import run_or_load
from ammlib.training.runs import checkpoint_path

pytestmark = pytest.mark.usefixtures("own_folders")


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
