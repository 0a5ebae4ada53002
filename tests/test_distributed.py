"""Facts about several processes: they take the steps of one, and when one of them is killed the job can go on."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import folders

from ammlib import AMM, distributed
from ammlib.checkpoint import load_weights, weights_digest
from ammlib.distributed import shard
from ammlib.evaluate import error_rate, shared_margins
from ammlib.prepare import prepare_data
from ammlib.recipes import make_recipe
from ammlib.runs import checkpoint_path, load_run, run_or_load, weights_path
from ammlib.train import Training, train

# Three batches of 101, 101 and 1 images: no share is like the other, and one process has none of the last.
SIZES = dict(train_size=203, batch=101)
RECIPES = {
    "plain": make_recipe("digits", "mlp", "reference", **SIZES),
    "min, screened": make_recipe("digits", "mlp", "amm", **SIZES),
    "min, exact": make_recipe("digits", "mlp", "amm", screen=None, **SIZES),
    "min, constant gradient": make_recipe("digits", "mlp", "no_high_order", **SIZES),
    "avg": make_recipe("digits", "mlp", "avg_exp", **SIZES),
    "relative": make_recipe("digits", "mlp", "deep_defense", **SIZES),
    "elsayed": make_recipe("digits", "mlp", "elsayed", **SIZES),
    "frozen batch norm": make_recipe("digits32", "resnet20", "amm", start="scratch", train_size=13, batch=6),
    "regulariser alone": make_recipe("toy", "linear", "amm", train_size=41, batch=20),
}
ONE_SIDED = {"min, screened": (0, 1), "min, exact": (0, 1), "avg": (0, 1)}  # by the half that is all correct


def started(name, weights):
    recipe = RECIPES[name]
    return Training(recipe, 0, prepare_data(recipe), weights if recipe.dataset == "digits" else None)


def outcome(training):
    sums, last = dict(training.sums), training.regulariser and vars(training.regulariser.last)
    return {"weights": training.model.state_dict(), "sums": sums, "last": last}


def three_steps(name, weights):
    """The first steps of a training, in float64."""
    training = started(name, weights)
    for x, y in training.batches.epoch(0):
        training.take_step(x.double(), y)
    return outcome(training)


def three_steps_one_sided(name, weights, half):
    """The same where one half of each batch is classified correctly and the other half is not."""
    training = started(name, weights)
    data = prepare_data(training.recipe)
    for start in (0, 50, 100):
        x = (data.x_train[start : start + 100] / 255).double()
        with torch.no_grad():
            prediction = training.model(x).argmax(1)
        wrong = (torch.arange(100) < 50) == bool(half)
        training.take_step(shard(x), shard(torch.where(wrong, (prediction + 1) % 10, prediction)))
    return outcome(training)


def everything(weights):
    """All that is compared; the keys are the names of the cases."""
    found = {name: three_steps(name, weights) for name in RECIPES}
    for name, halves in ONE_SIDED.items():
        found |= {f"{name}, half {half}": three_steps_one_sided(name, weights, half) for half in halves}
    training = started("plain", weights)
    x, y = training.x_test[:77], training.y_test[:77]
    found["labels"] = [labels for _, labels in training.batches.epoch(0)]
    found["error"] = error_rate(training.model.float(), x, y)
    measured = shared_margins(training.model.double(), (x / 255).double(), y, progress=False)
    found["margins"] = {"norm": measured.norm, "correct": measured.correct}
    found["one margin"] = shared_margins(training.model, (x[:1] / 255).double(), progress=False).norm
    return found


def work(rank, folder, weights):
    """One of two processes."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(everything(weights), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def weights():
    """Of a net that is right about most digits, so that screening has something to leave out."""
    recipe = make_recipe("digits", "mlp", "reference", epochs=2)
    return {name: w.double() for name, w in train(recipe, 1, progress=False).model.state_dict().items()}


@pytest.fixture(scope="module")
def by_one(weights):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return everything(weights)
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def by_two(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    mp.spawn(work, (str(folder), weights), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


CASES = [*RECIPES, *(f"{name}, half {half}" for name, halves in ONE_SIDED.items() for half in halves)]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_steps_of_one(name, by_one, by_two):
    one = by_one[name]
    for two in (found[name] for found in by_two):
        for key, weight in one["weights"].items():
            torch.testing.assert_close(two["weights"][key], weight, rtol=0, atol=1e-12)
        assert two["sums"] == pytest.approx(one["sums"], rel=1e-12)
        assert two["last"] == (one["last"] and pytest.approx(one["last"], rel=1e-9, nan_ok=True))
    assert weights_digest(by_two[0][name]["weights"]) == weights_digest(by_two[1][name]["weights"])


def test_the_cases_have_what_they_are_meant_to_have(by_one, weights):
    screened, exact = (by_one[f"min, {how}, half 0"]["last"] for how in ("screened", "exact"))
    assert exact["correct"] == exact["misclassified"] == exact["attacked"] / 2 == 50
    assert screened["attacked"] < exact["attacked"]
    assert any((by_one["min, exact"]["weights"][key] - weights[key]).abs().max() > 1e-3 for key in weights)


def test_the_shares_of_a_batch_are_the_batch(by_one, by_two):
    shares = [found["labels"] for found in by_two]
    assert [[len(labels) for labels in batches] for batches in shares] == [[51, 51, 1], [50, 50, 0]]
    for whole, *parts in zip(by_one["labels"], *shares, strict=True):
        assert torch.equal(torch.cat(parts), whole)


def test_an_evaluation_is_shared(by_one, by_two):
    for found in by_two:
        assert found["error"] == by_one["error"]
        assert torch.equal(found["margins"]["correct"], by_one["margins"]["correct"])
        for ours, theirs in ((found["margins"]["norm"], by_one["margins"]["norm"]), (found["one margin"],) * 2):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_batch_norm_that_trains_is_refused_on_the_cpu(monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(distributed.DistributedError, match="batch norm that is not frozen takes one process"):
        distributed.wrapped(torch.nn.Sequential(torch.nn.BatchNorm2d(3)))


def test_one_process_needs_no_others():
    assert distributed.world() == 1 and distributed.is_main() and distributed.anywhere(True)
    with distributed.joined(), distributed.main_first():
        assert distributed.from_main(lambda: 3) == 3 and distributed.total(1, 2.5) == [1, 2.5]
    with pytest.raises(ValueError, match="empty"):
        AMM()(torch.nn.Linear(4, 3), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))


# ---- torchrun

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
    _, shown = job.communicate(timeout=60)
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
    _, shown = job.communicate(timeout=60)
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
    _, shown = job.communicate(timeout=60)
    assert job.returncode != 0 and "error: unknown arch for digits 'nonsense'" in shown
