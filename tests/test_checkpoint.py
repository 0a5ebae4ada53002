"""Facts about checkpoints: whole or not at all, never run as code, and never taken for another run's."""

import errno
import os
import pickle
import random
from pathlib import Path

import pytest
import torch
from trainings import flip, result, tiny

from ammlib.models.weights import weights_digest
from ammlib.training.checkpoint import CheckpointError, before, load_checkpoint, save_checkpoint
from ammlib.training.prepare import prepare_data
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


# ---- writing


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


# ---- damaged and resumed


@pytest.fixture
def checkpoint(tmp_path):
    """The last checkpoint of a training of two epochs, with the one before it beside it; and how the training ended."""
    path = tmp_path / "c.pt"
    return path, result(train(tiny(), 0, checkpoint=path, progress=False))


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
