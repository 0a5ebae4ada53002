"""The package as a wheel, installed outside the checkout, does in an empty folder what the README says."""

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from ammlib.data.files import home

EXTRAS = ("matplotlib", "seaborn", "IPython", "ipywidgets", "papermill", "nbconvert", "jupyterlab", "snakemake")
WITHOUT = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
"""
VISION = "import ammlib.data.vision  # torchvision, also where its operators do not load\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: a build leaves files behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("ammlib", "results"):
        ignored = shutil.ignore_patterns("__pycache__", "weights")
        shutil.copytree(home() / folder, source / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(home() / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", out, source], check=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Of an environment that has this wheel, and for all else the packages of the present one less those of extras."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=True)
    (packages,) = root.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "others.pth").write_text(str(Path(torch.__file__).parents[1]))  # after the wheel's own folder
    (packages / "sitecustomize.py").write_text(WITHOUT)
    return root / "bin" / "python"


@pytest.fixture
def run(python, tmp_path, monkeypatch):
    """Run Python in an empty folder; what it prints."""
    for name in ("PYTHONPATH", "AMMLIB_RESULTS", "AMMLIB_CHECKPOINTS", "AMMLIB_DATA", "AMMLIB_FIGURES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words):
        done = subprocess.run([python, *words], cwd=tmp_path, text=True, capture_output=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_it_holds_every_module_and_every_stored_run(wheel):
    names = set(ZipFile(wheel).namelist())
    modules = {str(path.relative_to(home())) for path in (home() / "ammlib").rglob("*.py")}
    results = home() / "results"
    runs = {f"ammlib/stored/{path.relative_to(results)}" for path in (results / "runs").rglob("*.json")}
    assert modules <= names and runs <= names and "ammlib/stored/paper.csv" in names


def test_the_readmes_loop_and_the_margins_of_a_torchvision_model(run, python):
    code = "".join(re.findall(r"```python\n(.*?)```", (home() / "README.md").read_text("utf-8"), re.DOTALL))
    shorter = code.replace("range(600)", "range(9)").replace("224, 224", "32, 32")
    *_, trained, of_resnet, place = run("-c", f"{VISION}{shorter}print(ammlib.data.vision.__file__)").splitlines()
    assert "error" in trained and "samples 4" in of_resnet
    assert Path(place).is_relative_to(python.parents[1])


def test_the_papers_numbers_are_beside_ours(run):
    lines = run("-m", "ammlib", "compare", "table3", "--scale", "short").splitlines()
    assert any("0.90" in line and "1.14" in line for line in lines) and not any("not run" in line for line in lines)


def test_training_stores_its_run_in_the_folder(run, tmp_path):
    words = ("train", "--dataset", "digits", "--method", "reference", "--set", "epochs=1")
    stored = Path(run("-m", "ammlib", *words).split()[-1])
    assert stored.is_relative_to(tmp_path / "results" / "runs") and stored.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"results", "checkpoints"}


def test_what_needs_an_extra_names_it(python, tmp_path):
    words = [python, "-m", "ammlib", "reproduce", "00"]
    done = subprocess.run(words, cwd=tmp_path, text=True, capture_output=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No module named" in done.stderr and 'pip install "ammlib[notebooks]"' in done.stderr
