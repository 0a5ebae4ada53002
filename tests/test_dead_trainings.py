"""Facts about trainings that look dead: they say so once, and one that learns says nothing."""

import json

import pytest
import torch
from trainings import tiny

from ammlib.margin.parts import AGGREGATION
from ammlib.training import prepare
from ammlib.training.execute import run_or_load
from ammlib.training.runs import load_run
from ammlib.training.train import Training

pytestmark = pytest.mark.usefixtures("own_folders")


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
