"""Facts about logs: the values of each step and epoch, once, also after a resume."""

import pytest
from trainings import tiny

from ammlib.cli import main
from ammlib.training import logs
from ammlib.training.logs import CsvLog
from ammlib.training.train import train

pytestmark = pytest.mark.usefixtures("own_folders")


def test_a_callback_gets_the_values_of_every_step_and_epoch():
    calls = []
    training = train(tiny(), 0, progress=False, callback=lambda *call: calls.append(call))
    steps = [(number, values) for kind, number, values in calls if kind == "step"]
    assert [number for number, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert all(set(values) == {"loss", "train_error", "regulariser", "kept", "kept_margin"} for _, values in steps)
    assert [(number, values) for kind, number, values in calls if kind == "epoch"] == [
        (3 * (i + 1), entry) for i, entry in enumerate(training.history)
    ]
    assert sum(values["loss"] for _, values in steps[:3]) / 3 == pytest.approx(training.history[0]["loss"])


def test_a_log_has_each_step_once_also_after_a_resume(tmp_path):
    for first in (1, 3):  # the second process goes on after step 2
        log = CsvLog(tmp_path)
        for step in range(first, first + 3):
            log("step", step, {"loss": step / 10 + first, "margin": None})
    rows = (tmp_path / "step.csv").read_text().split()
    assert rows == ["steps,loss,margin", "1,1.1,", "2,1.2,", "3,3.3,", "4,3.4,", "5,3.5,"]


@pytest.mark.parametrize("left", [b"", b"steps,lo", b"steps,loss\n1,0.5\n2", b"\xff\n1,2,3\n", b"steps\n1\n"])
def test_a_log_that_was_half_written_does_not_stop_the_training(left, tmp_path):
    (tmp_path / "step.csv").write_bytes(left)
    log = CsvLog(tmp_path)
    for step in (2, 3):
        log("step", step, {"loss": 1.0})
    header, *rows = (tmp_path / "step.csv").read_text().split()
    assert header == "steps,loss" and rows[-2:] == ["2,1.0", "3,1.0"] and len(rows) <= 3


def test_a_log_is_written_beside_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "home", lambda: tmp_path)
    assert (
        main([*["train", "--dataset", "digits", "--log", "csv", "--set", "epochs=2", "train_size=60", "batch=20"]]) == 0
    )
    step, epoch = (list(tmp_path.rglob(f"out/logs/digits/mlp/amm/*/{kind}.csv")) for kind in ("step", "epoch"))
    assert [len(path.read_text().splitlines()) for path in (*step, *epoch)] == [7, 3]
