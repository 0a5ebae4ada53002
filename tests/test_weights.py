"""Facts about stored weights: bit for bit, and those of their run wherever they are loaded."""

import random

import pytest
import torch
from trainings import flip, tiny

from ammlib.data.sources import DataError
from ammlib.models.weights import load_weights, save_weights, weights_digest
from ammlib.training.execute import run_or_load, trained_model
from ammlib.training.prepare import new_model
from ammlib.training.recipes import reference_of
from ammlib.training.runs import load_run, weights_path

pytestmark = pytest.mark.usefixtures("own_folders")


def test_weights_are_stored_bit_for_bit(tmp_path):
    weights = {
        "float": torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).t(),  # not contiguous
        "special": torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1e-45]),
        "double": torch.tensor([0.1], dtype=torch.float64),
        "count": torch.tensor(12),
    }
    save_weights(tmp_path / "w.safetensors", weights)
    stored = load_weights(tmp_path / "w.safetensors")
    assert {name: (w.dtype, w.shape) for name, w in stored.items()} == {
        name: (w.dtype, w.shape) for name, w in weights.items()
    }
    assert weights_digest(stored) == weights_digest(weights)
    content = (tmp_path / "w.safetensors").read_bytes()
    save_weights(tmp_path / "w.safetensors", dict(reversed(weights.items())))
    assert (tmp_path / "w.safetensors").read_bytes() == content


def test_the_digest_sees_one_bit_and_the_names():
    weights = {"a": torch.zeros(3), "b": torch.ones(3)}
    digest = weights_digest(weights)
    assert weights_digest({"b": torch.ones(3), "a": torch.zeros(3)}) == digest
    assert weights_digest({"a": torch.ones(3), "b": torch.zeros(3)}) != digest
    assert weights_digest({"a": torch.tensor([0.0, -0.0, 0.0]), "b": torch.ones(3)}) != digest


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
