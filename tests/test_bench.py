"""The measurements of cost, in the small: that they measure, not what."""

import pytest

from ammlib import bench


@pytest.mark.parametrize("arch", ["mlp", "resnet20"])
def test_every_variant_is_measured_and_shown(arch, monkeypatch, tmp_path):
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path))  # the digits, enlarged, stand in
    monkeypatch.setattr(bench, "BATCH", 10)
    found = bench.step_times(arch, repeats=1, warm_up=(2, 1))
    assert found["images"] == "digits, enlarged" and found["ratio"]["plain"] == 1
    assert set(found["ratio"]) == set(found["peak_ratio"]) == set(bench.VARIANTS)
    assert all(ratio > 0 for ratio in (*found["ratio"].values(), *found["peak_ratio"].values()))
    assert all(report["attacked"] <= 10 for report in found["last_call"].values())
    lines = bench.table([{**found, "foolbox": None}]).splitlines()
    assert lines[0].split() == [arch] and lines[-1].startswith("foolbox is not installed")
