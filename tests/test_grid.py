"""Facts about the grid of workflow/: it makes what is missing and nothing else, also after a kill and a failure."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import folders

from ammlib import study
from ammlib.data.files import home
from ammlib.training.runs import checkpoint_path, run_path

pytest.importorskip("snakemake", reason="pip install -r requirements-grid.txt")
pytestmark = pytest.mark.grid
RUNS = study("digits")


def snakemake(root, *words, profile="local"):
    """A call in a folder of its own and, as it will be killed, with processes of its own."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", home() / "workflow" / "Snakefile", "--directory", root]
    command += ["--profile", home() / "workflow" / "profiles" / profile, *words]
    return subprocess.Popen(
        [*map(str, command)],
        env={**os.environ, **folders(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(job):
    """The exit code and what was shown."""
    shown, _ = job.communicate(timeout=500)
    return job.returncode, shown


def made():
    """When each run was made, of those that there are."""
    return {run_path(*run): run_path(*run).stat().st_mtime_ns for run in RUNS if run_path(*run).exists()}


def test_a_grid_killed_in_the_middle_makes_each_run_once(tmp_path, own_folders):
    job = snakemake(tmp_path, "digits")
    while not made():
        assert job.poll() is None, finish(job)
        time.sleep(0.02)
    os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    before = made()
    assert 1 <= len(before) < len(RUNS)

    broken = next(run for run in RUNS if run_path(*run) not in before)
    checkpoint = checkpoint_path(*broken)
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_bytes(b"damaged")
    code, shown = finish(snakemake(tmp_path, "digits"))
    assert code != 0 and "is damaged" in shown  # the failing job's log
    assert len(made()) == len(RUNS) - 1  # the others went on
    checkpoint.unlink()

    earlier = made()
    code, shown = finish(snakemake(tmp_path, "digits"))
    assert code == 0 and "2 of 2 steps (100%) done" in shown
    after = made()
    assert len(after) == len(RUNS) and after.items() >= earlier.items() and earlier.keys() > before.keys()
    assert len(list(Path(tmp_path, "out", "logs").rglob("*.log"))) == len(RUNS)

    code, shown = finish(snakemake(tmp_path, "digits"))
    assert code == 0 and "Nothing to be done" in shown
    assert made() == after


def test_what_is_stored_is_not_made_again_and_its_notebook_is(tmp_path):
    """The runs of Fig. 1 are in the repository, with the dates of its checkout."""
    shutil.copytree(home() / "results" / "runs" / "toy", tmp_path / "results" / "runs" / "toy")
    code, shown = finish(snakemake(tmp_path, "fig1", "--dry-run"))
    jobs = shown.partition("Job stats:")[2].partition("Reasons:")[0].split()
    assert code == 0 and "notebook_fig1" in jobs and "run" not in jobs, shown


@pytest.mark.parametrize("target", ["table1", "fig3", "table4"])
def test_the_slurm_profile_plans_full_runs(target, tmp_path):
    code, shown = finish(snakemake(tmp_path, target, "--dry-run", profile="slurm"))
    assert code == 0 and "/full-" in shown and "/short-" not in shown, shown
