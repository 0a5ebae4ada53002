"""Facts about what imports what: the contracts of pyproject.toml hold, and a part of the package loads no more."""

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ammlib


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement, absent",
    [
        ("import ammlib", ["torch", "numpy"]),
        ("import ammlib.margin.deepfool", ["ammlib.data", "ammlib.training", "torchvision", "sklearn"]),
        ("from ammlib import AMM", ["ammlib.data", "ammlib.models", "ammlib.training", "matplotlib"]),
        ("import ammlib.report.tables", ["ammlib.training.train", "ammlib.data.sources", "matplotlib"]),
        ("import ammlib.cli", ["matplotlib", "seaborn", "IPython", "jupyter_core"]),  # of the extra for notebooks
        ("import ammlib.report.figures", ["ammlib.training.train", "ammlib.data.sources", "ammlib.data.datasets"]),
    ],
)
def test_no_more_is_loaded_than_is_needed(statement, absent):
    assert not loaded_by(statement) & set(absent)


def test_the_method_imports_nothing_but_torch_and_tqdm():
    allowed = {"ammlib", "torch", "tqdm", *sys.stdlib_module_names}
    for path in (Path(ammlib.__file__).parent / "margin").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            found = {name.partition(".")[0] for name in names} - allowed
            assert found <= {"pandas"}, path  # when a frame is asked for


def test_every_public_name_is_there_and_listed():
    assert set(ammlib.__all__) == set(ammlib.HOMES) <= set(dir(ammlib))
    for name, home in ammlib.HOMES.items():
        assert getattr(ammlib, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(ammlib, "nothing")  # noqa: B009


def test_no_name_of_a_package_hides_a_module():
    modules = [m.name for m in pkgutil.walk_packages(ammlib.__path__, "ammlib.") if m.name != "ammlib.__main__"]
    assert len(modules) > 50
    for name in modules:
        import_module(name)
        package, _, leaf = name.rpartition(".")
        assert isinstance(getattr(import_module(package), leaf), ModuleType), name
