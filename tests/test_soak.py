"""Facts about the soak: what is killed or damaged on purpose ends as if it was left alone, and the docs say so."""

import json
import os
import random

import pytest

from ammlib.data import files
from ammlib.experiments import soak

pytestmark = pytest.mark.usefixtures("own_folders")


def test_a_killed_and_a_damaged_training_end_like_the_one_left_alone(tmp_path):
    rng = random.Random(0)
    assert soak.killed(tmp_path / "killed", 0, rng, ("step", "save", "store"))
    assert soak.flipped(tmp_path / "flipped", 0, rng, "*.pt") == (True, True)


def test_the_soak_ends_when_a_training_fails_of_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "train_run", lambda *_: os._exit(3))
    with pytest.raises(RuntimeError, match="a training ended with 3"):
        soak.killed(tmp_path, 0, random.Random(0))


def test_the_docs_show_what_the_soak_has_found():
    measured = json.loads((files.home() / "results" / "bench" / "soak.json").read_text())
    assert soak.table(measured) in (files.home() / "docs" / "robustness.md").read_text()
    assert all(found["lost"] == 0 for found in measured["nets"]["mlp"]["faults"].values())
