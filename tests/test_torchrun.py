"""Facts about jobs of torchrun: they end as those of one process do, and when a process is killed they can go on."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import folders

from ammlib.models.weights import load_weights, weights_digest
from ammlib.training.execute import run_or_load
from ammlib.training.recipes import make_recipe
from ammlib.training.runs import checkpoint_path, load_run, weights_path

LONG = make_recipe("digits", "mlp", "amm", epochs=12)


def torchrun(root, *options, where="--standalone --nproc-per-node 2"):
    words = f"-m torch.distributed.run {where} -m ammlib train --dataset digits --set epochs=12"
    environment = {**os.environ, **folders(root), "OMP_NUM_THREADS": "1"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, *words.split(), *options], env=environment, **pipes)


def workers(job):
    """Process ids by rank."""
    found = {}
    for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        found |= {int(text.removeprefix("RANK=")): int(pid) for text in variables if text.startswith("RANK=")}
    return found


def finish(job):
    """What a job prints that ends well."""
    printed, shown = job.communicate(timeout=300)
    assert job.returncode == 0, shown
    return printed


def wait_for_checkpoint(job, path):
    while not path.exists():
        assert job.poll() is None, job.communicate()
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The run of two processes that nothing happens to, and its weights."""
    root = tmp_path_factory.mktemp("uninterrupted")
    printed = finish(torchrun(root))
    assert printed.count("error") == 1 and len(printed.splitlines()) == 2  # one process speaks
    with pytest.MonkeyPatch.context() as patch:
        for name, value in folders(root).items():
            patch.setenv(name, value)
        return load_run(LONG, 0), load_weights(weights_path(LONG, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_worker_is_killed_the_job_ends_and_goes_on_later(victim, tmp_path, own_folders, uninterrupted):
    job = torchrun(tmp_path)
    wait_for_checkpoint(job, checkpoint_path(LONG, 0))
    os.kill(workers(job)[victim], signal.SIGKILL)
    _, shown = job.communicate(timeout=300)
    assert job.returncode != 0 and "error: another process of this job has ended; the same command" in shown
    assert load_run(LONG, 0) is None
    run, weights = uninterrupted
    if victim == 0:  # go on with as many processes: the same bits
        finish(torchrun(tmp_path))
        assert load_run(LONG, 0).weights == run.weights == weights_digest(weights)
    else:  # go on with one process: the same up to rounding
        resumed = run_or_load(LONG, 0, progress=False)
        assert resumed.metrics["error"] == pytest.approx(run.metrics["error"], abs=1.0)
        assert resumed.metrics["margin"] == pytest.approx(run.metrics["margin"], rel=0.05)
    assert not checkpoint_path(LONG, 0).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_stop_asked_of_one_process_stops_all_with_a_checkpoint(tmp_path, own_folders):
    job = torchrun(tmp_path)
    wait_for_checkpoint(job, checkpoint_path(LONG, 0))
    os.kill(workers(job)[1], signal.SIGINT)
    _, shown = job.communicate(timeout=300)
    assert job.returncode != 0 and "stopped; the same command" in shown and "another process" not in shown
    stopped = torch.load(checkpoint_path(LONG, 0), weights_only=True)["state"]
    assert 1 <= stopped["epoch"] < LONG.epochs and load_run(LONG, 0) is None


def test_two_nodes_are_as_good_as_two_processes_and_the_first_writes(tmp_path, monkeypatch, uninterrupted):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id test --rdzv-endpoint localhost:{port}"
    roots = [tmp_path / "first", tmp_path / "second"]
    jobs = [torchrun(root, where=where) for root in roots]
    assert sorted(len(finish(job).splitlines()) for job in jobs) == [0, 2]
    (written,) = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.json")}
    for name, value in folders(tmp_path / written).items():
        monkeypatch.setenv(name, value)
    assert load_run(LONG, 0).weights == uninterrupted[0].weights


def test_what_is_wrong_is_said_and_ends_all_processes(tmp_path):
    job = torchrun(tmp_path, "--arch", "nonsense")
    _, shown = job.communicate(timeout=300)
    assert job.returncode != 0 and "error: unknown arch for digits 'nonsense'" in shown
