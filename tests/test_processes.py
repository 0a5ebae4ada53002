"""Facts about what processes tell each other: it lies on the device of the data, for NCCL knows no other."""

import pytest
import torch
import torch.distributed as dist
from conftest import make_net
from torch import nn
from trainings import start, tiny

from ammlib import AMM, Elsayed, margins
from ammlib.data.batches import model_input
from ammlib.margin.baselines import Refined
from ammlib.margin.processes import Shares, anywhere
from ammlib.training.evaluate import error_rate, shared_margins

CPU = torch.device("cpu")  # where the data are


@pytest.fixture
def nccl(monkeypatch):
    """Two processes with the same share that meet only where the data are; what says no device is on another one."""
    met = []

    def all_gather(parts, values):
        assert all(t.device == CPU for t in (*parts, values)), "No backend type associated with device type"
        met.append(values.dtype)
        for part in parts:
            part.copy_(values)

    def all_reduce(values):
        assert values.device == CPU, "No backend type associated with device type"
        values.mul_(2)

    stubs = dict(all_gather=all_gather, all_reduce=all_reduce, get_world_size=lambda: 2, get_rank=lambda: 0)
    stubs |= dict(is_available=lambda: True, is_initialized=lambda: True)
    for name, stub in stubs.items():
        monkeypatch.setattr(dist, name, stub)
    with torch.device("meta"):
        yield met


def test_the_stub_rejects_what_is_elsewhere(nccl):
    with pytest.raises(AssertionError, match="No backend type associated with device type"):
        Shares(3, "meta")


def test_sizes_and_columns_are_gathered_where_the_data_are(nccl):
    shares = Shares(3, CPU)
    norm, flag = torch.tensor([1.0, 2.0, 3.0], device=CPU), torch.tensor([True, False, True], device=CPU)
    norms, flags = shares.gather(norm, flag)
    assert shares.sizes == [3, 3] and norms.tolist() == 2 * norm.tolist() and flags.tolist() == 2 * flag.tolist()
    assert shares.own(norms).tolist() == norm.tolist() and anywhere(flag.any()) and len(nccl) == 3


@pytest.mark.parametrize("strategy", ["frugal", "batched"])
@pytest.mark.parametrize("make", [AMM, lambda **options: AMM("avg", **options), Refined, None], ids=range(4))
def test_a_regulariser_works_where_the_data_are_alone(make, strategy, request):
    """And makes no tensor anywhere else."""
    net, x = make_net(lambda: nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 5))), torch.rand(20, 8).double()
    y = net(x).argmax(1) * (torch.arange(20) % 3 > 0)
    met = request.getfixturevalue("nccl")
    regulariser = Elsayed() if make is None else make(strategy=strategy)
    value = regulariser(net, x, y)
    value.backward()
    assert value.device == CPU and value > 0 and regulariser.last.correct == 2 * int((net(x).argmax(1) == y).sum())
    assert len(met) >= 3


def test_columns_from_elsewhere_meet_where_the_data_are(nccl):
    shares = Shares(2, CPU)
    shares.device = torch.device("meta")
    with pytest.raises(AssertionError, match="No backend type"):
        shares.gather(torch.ones(2, device=CPU))


def test_a_step_and_an_evaluation_work_where_the_data_are_alone(request):
    training = start(tiny())
    x, y = next(training.batches.epoch(0))
    images, labels = training.x_test[:30], training.y_test[:30]
    own = margins(training.model, model_input(images[:15]), progress=False)
    error = error_rate(training.model, images[:15], labels[:15])
    request.getfixturevalue("nccl")  # the other process has the same half
    with CPU:  # where numpy's arrays would come to
        found = shared_margins(training.model, images, progress=False)
    assert found.norm.tolist() == 2 * own.norm.tolist() and found.success.tolist() == 2 * own.success.tolist()
    assert error_rate(training.model, images, labels) == error
    training.take_step(x, y)
    assert training.sums["samples"] == 2 * len(x) and training.anywhere(True) and not training.anywhere(False)
