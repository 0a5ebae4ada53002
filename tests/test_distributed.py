"""Facts about several processes: they take the steps of one."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ammlib import AMM
from ammlib.margin.processes import shard
from ammlib.methods import mma
from ammlib.methods.registry import METHODS
from ammlib.models.weights import weights_digest
from ammlib.training import distributed
from ammlib.training.evaluate import error_rate, shared_margins
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.train import Training, train

# Three batches of 101, 101 and 1 images: no share is like the other, and one process has none of the last.
SIZES = dict(train_size=203, batch=101)
SYSTEMS = list(METHODS)[list(METHODS).index("dlsvm") :]
RECIPES = {
    "plain": make_recipe("digits", "mlp", "reference", **SIZES),
    "min, screened": make_recipe("digits", "mlp", "amm", **SIZES),
    "min, exact": make_recipe("digits", "mlp", "amm", screen=None, **SIZES),
    "min, constant gradient": make_recipe("digits", "mlp", "no_high_order", **SIZES),
    "avg": make_recipe("digits", "mlp", "avg_exp", **SIZES),
    "relative": make_recipe("digits", "mlp", "deep_defense", **SIZES),
    "elsayed": make_recipe("digits", "mlp", "elsayed", **SIZES),
    "frozen batch norm": make_recipe("digits32", "resnet20", "amm", start="scratch", train_size=13, batch=6),
    **{method: make_recipe("digits", "mlp", method, **SIZES) for method in SYSTEMS if method != "mma"},
    "masks": make_recipe("digits", "mlp", "dropconnect", mask="sample", **SIZES),
    "regulariser alone": make_recipe("toy", "linear", "amm", train_size=41, batch=20),
}
ONE_SIDED = {"min, screened": (0, 1), "min, exact": (0, 1), "avg": (0, 1)}  # by the half that is all correct


def started(name, weights):
    recipe = RECIPES[name]
    return Training(recipe, 0, prepare_data(recipe), weights if recipe.dataset == "digits" else None)


def outcome(training):
    sums, last = dict(training.sums), training.method.last and vars(training.method.last)
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


def test_mma_takes_one_process(monkeypatch):
    monkeypatch.setattr(mma, "world", lambda: 2)
    recipe = make_recipe("digits", "mlp", "mma", **SIZES)
    with pytest.raises(ValueError, match="mma trains in one process"):
        Training(recipe, 0, prepare_data(recipe))


def test_batch_norm_that_trains_is_refused_on_the_cpu(monkeypatch):
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(distributed.DistributedError, match="batch norm that is not frozen takes one process"):
        distributed.wrapped(torch.nn.Sequential(torch.nn.BatchNorm2d(3)))


def test_one_process_needs_no_others():
    assert distributed.world() == 1 and distributed.is_main()
    with distributed.joined(), distributed.main_first():
        assert distributed.from_main(lambda: 3) == 3 and distributed.total(torch.tensor([1, 2.5])) == [1, 2.5]
    with pytest.raises(ValueError, match="empty"):
        AMM()(torch.nn.Linear(4, 3), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
