"""Facts about what is measured on the sample of ImageNet."""

import numpy as np
import torch

from ammlib.cli import main
from ammlib.experiments import imagenet_sample as sample
from ammlib.experiments.imagenet_report import fine_tuning_table, sample_figure, sample_table


def test_the_sample_goes_on_where_it_was_stopped(tiny_images, tiny_weights, monkeypatch):
    monkeypatch.setattr(sample, "FOLDER", "tiny")
    first = sample.measure_sample("resnet18", 1)
    assert len(first.predictions) == 3 and len(first.rows) == 1
    both = sample.measure_sample("resnet18", 2)
    assert (
        both.rows[:1] == first.rows
        and both.predictions == first.predictions
        and both.std[:1] == first.std
        and len(both.std) == 2
    )
    assert sample.load_sample("resnet18") == both
    ratio = torch.tensor(both.std) / torch.tensor(both.pixel)
    assert (ratio >= 1 / 0.229 - 0.01).all() and (ratio <= 1 / 0.224 + 0.01).all()


def test_a_measurement_of_other_images_is_not_overwritten(tiny_images, tiny_weights, monkeypatch, capsys):
    monkeypatch.setattr(sample, "FOLDER", "tiny")
    sample.measure_sample("resnet18", 1)
    (tiny_images / "tiny" / "val" / "n01" / "1.JPEG").write_bytes(
        (tiny_images / "tiny" / "val" / "n01" / "0.JPEG").read_bytes()
    )
    before = sample.path_of("sample", "resnet18").read_bytes()
    assert main(["sample", "margins", "--arch", "resnet18", "--images", "2"]) == 2
    assert "was measured with other images or weights; move it away" in capsys.readouterr().err
    assert sample.path_of("sample", "resnet18").read_bytes() == before


def test_fine_tuning_on_the_sample_is_stored_with_its_recipe(tiny_images, tiny_weights, monkeypatch):
    monkeypatch.setattr(sample, "FOLDER", "tiny")
    found = sample.fine_tune("resnet18", images=2, batch=1)
    assert len(found["steps"]) == len(found["before"]) == len(found["after"]) == 2
    assert all(np.isfinite(step["loss"]) for step in found["steps"])
    assert sample.stored("fine_tuning", "resnet18") == found and found["recipe"]["regulariser"]["num_rivals"] == 10
    assert sample.stored("fine_tuning", "resnet50") is None


def test_the_report_shows_ours_beside_the_paper_or_how_to_measure():
    net = {
        "arch": "resnet50_caffe",
        "weights": "",
        "versions": {},
        "device": "cpu",
        "images": "",
        "labels": [0, 1, 2, 3],
    }
    columns = {"rows": [2, 0], "pixel": [0.1, 0.3], "std": [0.44, 1.32], "steps": [2, 4], "success": [True, True]}
    found = sample.Sample(**net, predictions=[0, 1, 3, 3], **columns)
    lines = {" ".join(line.split()) for line in sample_table(found.arch, found).splitlines()}
    assert {"top-1 error (%) 4 25.0 23.85", "margin, mean (std units) 2 0.88 0.82"} <= lines
    assert {"margin, mean of the correct (std units) 1 1.32", "margin, mean (pixel units) 2 0.200"} <= lines
    step = {"loss": 1.5, "regulariser": 0.25, "kept": 2.0, "margin": None}
    tuning = {"steps": [step], "before": [0.5, 1.0], "after": [0.75, 0.9]}
    text = fine_tuning_table(found.arch, tuning)
    assert "mean margin 0.750 → 0.825 (std units), larger for 1 of 2 images" in text
    without_margins = sample.Sample(**net, predictions=[0, 1])  # stopped early
    assert sample_table(found.arch, without_margins) == sample_table(found.arch, None)
    for arguments in ((found, tuning), (without_margins, tuning), (None, None)):
        assert len(sample_figure(found.arch, *arguments).axes) == 2
    assert sample_table("senet50", None) == "not measured; python -m ammlib sample margins --arch senet50"
    assert "fine_tuning --arch senet50" in fine_tuning_table("senet50", None)
