"""Facts about stored files: whole or not at all, never run as code, and never taken for another run's."""

import errno
import os
import pickle
from pathlib import Path

import pytest
import torch

from ammlib.data.files import write_atomically
from ammlib.models.weights import load_weights, save_weights, weights_digest
from ammlib.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.train import Training, train

CPU = torch.device("cpu")
IDENTITY = {"lr": 0.1, "decay": [[1, 0.1]], "regulariser": {"lam": 8.0}, "seed": 0}
STATE = {"epoch": 1, "sums": {"loss": 0.1}, "history": [{"kept": None}], "model": {"w": torch.arange(5000.0)}}


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def ctrl_c(*_):
    raise KeyboardInterrupt


@pytest.fixture
def path(tmp_path):
    """A good checkpoint."""
    save_checkpoint(tmp_path / "c.pt", IDENTITY, STATE)
    return tmp_path / "c.pt"


def tiny(**changes):
    return make_recipe("digits", "mlp", "amm", **{"epochs": 2, "train_size": 60, "batch": 20, **changes})


# ---- writing


def test_a_file_is_written_with_its_folders_and_readable_by_all(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    for content in (b"first", b"second"):
        write_atomically(path, lambda file, content=content: file.write(content))
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["c.bin"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("moment", ["write", "fsync", "chmod", "replace"])
def test_a_crash_while_writing_leaves_the_old_file_and_no_other(moment, error, tmp_path, monkeypatch):
    def crash(*_):
        raise error

    def write(file):
        file.write(b"half")
        if moment == "write":
            crash()

    path = tmp_path / "file"
    path.write_bytes(b"good")
    if moment != "write":
        monkeypatch.setattr(os, moment, crash)
    with pytest.raises(error):
        write_atomically(path, write)
    assert path.read_bytes() == b"good" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("crash", [full_disk, ctrl_c])
def test_the_last_good_checkpoint_survives_a_crash_while_writing_the_next(crash, tmp_path, monkeypatch):
    def half(state, file):
        file.write(b"half")
        crash()

    recipe, path = tiny(), tmp_path / "c.pt"
    uninterrupted = train(recipe, 0, progress=False)
    training = Training(recipe, 0, prepare_data(recipe), checkpoint=path)
    for x, y in training.batches.epoch(0):
        training.take_step(x, y)
    training.end_epoch()
    good = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises((OSError, KeyboardInterrupt)):
        patch.setattr(torch, "save", half)
        training.run(progress=False)
    assert path.read_bytes() == good and os.listdir(tmp_path) == ["c.pt"]
    resumed = train(recipe, 0, checkpoint=path, progress=False)
    assert weights_digest(resumed.model.state_dict()) == weights_digest(uninterrupted.model.state_dict())


# ---- reading


def test_a_checkpoint_is_read_as_it_was_written(path, tmp_path):
    state = load_checkpoint(path, IDENTITY)
    assert torch.equal(state["model"].pop("w"), STATE["model"]["w"])
    assert state == {**STATE, "model": {}}
    assert load_checkpoint(tmp_path / "none.pt", IDENTITY) is None


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_checkpoint_is_an_error_that_names_it(share, path):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=f"{path} is damaged .*; delete it to start anew"):
        load_checkpoint(path, IDENTITY)


@pytest.mark.parametrize("content", [[1, 2], {"model": {}}, {"identity": IDENTITY}, {"state": {}}])
def test_what_is_no_checkpoint_is_an_error(content, path):
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path, IDENTITY)


def test_random_bytes_are_an_error(path):
    path.write_bytes(torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0)).byte().numpy().tobytes())
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path, IDENTITY)


class Code:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("dump", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, 2))])
def test_code_in_a_checkpoint_is_refused_and_not_run(dump, path, tmp_path):
    dump({"identity": IDENTITY, "state": Code(tmp_path / "was run")}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path, IDENTITY)
    assert not (tmp_path / "was run").exists()
    pickle.loads(pickle.dumps(Code(tmp_path / "was run")))
    assert (tmp_path / "was run").exists()  # so the trap works


# ---- whose checkpoint it is


@pytest.mark.parametrize(
    "changes, seed, different",
    [
        ({}, 1, "seed"),
        ({"lr": 0.5}, 0, "lr"),
        ({"lam": 4.0}, 0, "regulariser"),
        ({"epochs": 5, "momentum": 0.5}, 2, "decay, epochs, momentum, seed"),
    ],
)
def test_another_runs_checkpoint_is_refused_and_the_difference_named(changes, seed, different, tmp_path):
    recipe, path = tiny(), tmp_path / "c.pt"
    train(recipe, 0, checkpoint=path, progress=False)
    content = path.read_bytes()
    with pytest.raises(CheckpointError, match=f"{path} belongs to another run: different {different};"):
        train(recipe.with_(**changes), seed, checkpoint=path, progress=False)
    assert path.read_bytes() == content


def test_where_a_recipe_comes_from_makes_no_other_run(tmp_path):
    recipe, path = tiny(), tmp_path / "c.pt"
    train(recipe, 0, checkpoint=path, progress=False)
    other = type(recipe).from_dict({**recipe.to_dict(), "source": "elsewhere"})
    assert train(other, 0, checkpoint=path, progress=False).epoch == 2


# ---- weights


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
