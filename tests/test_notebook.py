"""Facts about the frame of the notebooks: parameters are checked before any work, and all notebooks have one form."""

import ast
import re
import time

import nbformat
import papermill
import pytest
import torch
from conftest import changed

from ammlib import load_data
from ammlib.data.files import home
from ammlib.data.sources import DataError
from ammlib.report import notebook, style
from ammlib.report.notebook import check_parameters, stored_runs
from ammlib.training import estimate, recipes, studies
from ammlib.training.runs import run_path

NOTEBOOKS = sorted((home() / "notebooks").glob("*.ipynb"))
ALLOWED = dict(seed=range(10), lam=(8.0, float), arch=("mlp", "lenet"), deep=bool)
LINE = re.compile(r"(?P<name>\w+): (?P<type>[\w| \[\],]+) = (?P<value>.+?)  # \S.*")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def values(**changed):
    return {"In": [], "Out": {}, "_": 1, "seed": 0, "lam": 8.0, "arch": "mlp", "deep": False, **changed}


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def is_parameters(cell):
    return "parameters" in cell.metadata.get("tags", [])


def parameters_and_check(path):
    """The lines of the one cell of parameters, without those that are all comment, and the source of the next cell."""
    cells = code_cells(path)
    (place,) = [i for i, cell in enumerate(cells) if is_parameters(cell)]
    lines = [line for line in cells[place].source.splitlines() if not line.startswith("#")]
    return lines, cells[place + 1].source


# ---- check_parameters


@pytest.mark.parametrize("good", [{}, {"seed": 9}, {"lam": 8}, {"arch": "lenet"}, {"deep": True}, {"plots": ast}])
def test_good_parameters_pass(good):
    check_parameters(values(**good), **ALLOWED)


@pytest.mark.parametrize("typo", [{"sed": 3}, {"Lam": 3.0}, {"architecture": "mlp"}, {"deeper": None}, {"seeds": [1]}])
def test_an_unknown_name_is_named_beside_the_valid_ones(typo):
    text = f"unknown parameter {next(iter(typo))!r}; valid are seed: an integer from 0 to 9; lam: a number; "
    with pytest.raises(ValueError, match=text + "arch: one of mlp, lenet; deep: True or False"):
        check_parameters(values(**typo), **ALLOWED)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"seed": 10}, "seed must be an integer from 0 to 9, got 10"),
        ({"seed": 3.0}, "seed must be an integer from 0 to 9, got 3.0"),
        ({"seed": True}, "seed must be an integer from 0 to 9, got True"),
        ({"seed": [1]}, r"seed must be an integer from 0 to 9, got \[1\]"),
        ({"lam": "8"}, "lam must be a number, got '8'"),
        ({"lam": True}, "lam must be a number, got True"),
        ({"arch": "mpl"}, "arch must be one of mlp, lenet, got 'mpl'"),
        ({"deep": 1}, "deep must be True or False, got 1"),
        ({"deep": None}, "deep must be True or False, got None"),
    ],
)
def test_a_bad_value_is_shown_beside_what_is_allowed(bad, message):
    with pytest.raises(ValueError, match=message):
        check_parameters(values(**bad), **ALLOWED)


def test_none_and_numbers_can_be_choices_and_an_integer_stands_for_a_number():
    for good in ({"size": None, "c": 2}, {"size": 5000, "c": 0.5}):
        check_parameters(dict(good), size=(None, 5000), c=(0.5, 2.0))
    with pytest.raises(ValueError, match="size must be one of None, 5000, got 5000.0"):
        check_parameters({"size": 5000.0}, size=(None, 5000))


def test_lists_can_be_parameters():
    check_parameters({"seeds": [0, 1]}, seeds=([0], list))
    with pytest.raises(ValueError, match="seeds must be a list, got 0"):
        check_parameters({"seeds": 0}, seeds=([0], list))


@pytest.mark.parametrize("other", [{"seed": 3}, {"lam": 4}, {"arch": "lenet"}, {"deep": True}])
def test_figures_of_other_parameters_than_the_defaults_leave_the_committed_ones_alone(other, monkeypatch):
    monkeypatch.delenv("AMMLIB_FIGURES", raising=False)
    check_parameters(values(**other), **ALLOWED)
    assert style.figures_root() == home() / "out" / "figures"
    check_parameters(values(), **ALLOWED)
    assert style.figures_root() == home() / "figures"


def test_runs_of_data_to_try_things_out_leave_the_results_alone(monkeypatch):
    monkeypatch.delenv("AMMLIB_RESULTS", raising=False)
    folders = {name: run_path(recipes.make_recipe(name, "lenet", "amm"), 0) for name in ("cifar10", "digits32")}
    assert folders["cifar10"].is_relative_to(home() / "results" / "runs" / "cifar10")
    assert folders["digits32"].is_relative_to(home() / "out" / "runs" / "digits32")


def test_cells_can_be_run_again_after_the_notebook_has_made_names_of_its_own():
    namespace = values()
    check_parameters(namespace, **ALLOWED)
    namespace.update(models={}, seed=1)
    check_parameters(namespace, **ALLOWED)
    namespace.update(seed=10)
    with pytest.raises(ValueError, match="seed must be"):
        check_parameters(namespace, **ALLOWED)


def test_papermill_fails_at_once_on_a_typo_and_names_the_valid_parameters(tmp_path):
    make = nbformat.v4.new_code_cell
    cells = [
        make("from ammlib.report.notebook import check_parameters"),
        make("seed: int = 0  # of everything", metadata={"tags": ["parameters"]}),
        make("check_parameters(globals(), seed=range(10))"),
        make("raise AssertionError('reached')"),
    ]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "tiny.ipynb")
    with pytest.raises(papermill.PapermillExecutionError) as raised:
        papermill.execute_notebook(tmp_path / "tiny.ipynb", tmp_path / "out.ipynb", {"sed": 3}, progress_bar=False)
    assert raised.value.evalue == "unknown parameter 'sed'; valid are seed: an integer from 0 to 9"


# ---- every notebook


@each_notebook
def test_parameters_are_typed_and_commented(path):
    lines, _ = parameters_and_check(path)
    for line in lines:
        found = LINE.fullmatch(line)
        assert found, f"not of the form `name: type = value  # comment`: {line}"
        value = ast.literal_eval(found["value"])
        assert type(value).__name__ in found["type"].replace("None", "NoneType"), line


@each_notebook
def test_papermill_lists_the_parameters_with_their_comments(path):
    lines, _ = parameters_and_check(path)
    listed = papermill.inspect_notebook(path)
    assert list(listed) == [LINE.fullmatch(line)["name"] for line in lines]
    assert all(p["help"] and p["inferred_type_name"] != "None" for p in listed.values())


@each_notebook
def test_the_next_cell_checks_just_these_parameters(path):
    lines, check = parameters_and_check(path)
    call = ast.parse(check).body[0].value
    assert (call.func.id, ast.unparse(call.args[0]), len(call.args)) == ("check_parameters", "globals()", 1)
    assert [k.arg for k in call.keywords] == [LINE.fullmatch(line)["name"] for line in lines]


@each_notebook
def test_the_check_knows_the_defaults(path):
    namespace = {}
    for cell in code_cells(path):  # imports, parameters, check
        exec(cell.source.split("\nif ")[0], namespace)
        if "check_parameters(" in cell.source:
            break
    assert not style.exploring


@each_notebook
def test_only_imports_come_before_the_parameters(path):
    for cell in code_cells(path):
        if is_parameters(cell):
            break
        assert {type(node) for node in ast.parse(cell.source).body} <= {ast.Import, ast.ImportFrom}


@each_notebook
def test_a_notebook_tells_the_story_and_leaves_definitions_and_the_shell_alone(path):
    for cell in code_cells(path):
        tree = ast.parse(cell.source)  # which %magic and !shell would not pass
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        assert "get_ipython" not in cell.source and "sys.path" not in cell.source
    assert sum(bool(line.strip()) for cell in code_cells(path) for line in cell.source.splitlines()) <= 75


@each_notebook
def test_a_notebook_is_committed_executed_from_top_to_bottom_without_an_error(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "error" not in {output.output_type for cell in cells for output in cell.outputs}
    assert nbformat.read(path, 4).metadata.kernelspec.name == "python3"


# ---- trained live


@pytest.mark.parametrize(("name", "arch"), [("05_cifar", "lenet"), ("06_svhn", "resnet20")])
def test_benchmarks_train_what_is_not_stored_and_store_it(name, arch, tmp_path, monkeypatch):
    for folder in ("RESULTS", "CHECKPOINTS", "FIGURES"):
        monkeypatch.setenv(f"AMMLIB_{folder}", str(tmp_path / folder.lower()))
    given = {"dataset": "digits32", "arch": arch, "scale": "short"}
    done = papermill.execute_notebook(
        home() / "notebooks" / f"{name}.ipynb", tmp_path / "out.ipynb", given, progress_bar=False
    )
    printed = "".join(o.text for cell in done.cells for o in cell.get("outputs", []) if o.output_type == "stream")
    assert "this is the short scale" in printed and "scale=full" in printed and "; training 2 on cpu, about " in printed
    stored = sorted((tmp_path / "results" / "runs" / "digits32" / arch).glob("*/short-*.json"))
    assert [path.parent.name for path in stored] == ["amm", "reference"]
    assert f"{name[:2]}_margins_digits32_{arch}.png" in {path.name for path in (tmp_path / "figures").iterdir()}


def test_the_estimate_counts_steps_evaluations_and_margins(monkeypatch):
    monkeypatch.setattr(estimate, "seconds_of_step", lambda training, budget, clock: 1e8)
    monkeypatch.setattr(estimate, "seconds_of_image", lambda training, budget, clock: (1e4, 1.0))
    tiny = dict(train_size=250, batch=100, epochs=3, margin_size=40)
    runs = [(recipes.make_recipe("digits32", "lenet", "reference", **tiny), seed) for seed in range(2)]
    tested = len(load_data("digits32").x_test)
    steps, predictions, followed = 3 * 3, 3 * tested, 3 * 2  # two margins an epoch: a twentieth of 40
    assert notebook.estimate(runs) == 2 * (1e8 * steps + 1e4 * predictions + followed + 40)


@pytest.mark.parametrize(("each", "counts"), [(0.0, [2, 8, 32, 50]), (1.0, [2, 8]), (9.0, [2])])
def test_the_estimate_looks_at_as_many_items_as_the_time_allows(each, counts):
    clock, seen = [0.0], []

    def task(count):
        seen.append(count)
        clock[0] += each * count

    assert estimate.per_item(task, 50, 20.0, lambda: clock[0]) == each and seen == counts and clock[0] <= 20


def test_core_hours_are_of_one_thread_by_cpu_time(monkeypatch):
    seen = []
    monkeypatch.setattr(
        estimate, "estimate", lambda wanted, clock: seen.append((torch.get_num_threads(), clock)) or 1.0
    )
    threads = torch.get_num_threads()
    assert estimate.core_seconds([]) == 1.0 and torch.get_num_threads() == threads
    assert seen == [(1, time.process_time)]


def test_missing_data_is_said_before_any_training(tmp_path, monkeypatch):
    monkeypatch.setenv("AMMLIB_DATA", str(tmp_path))
    monkeypatch.setenv("AMMLIB_RESULTS", str(tmp_path))
    changed(monkeypatch, "cifar100", sources={"a download": lambda name, root: 1 / 0})
    with pytest.raises(DataError, match="no source of cifar100 worked"):
        stored_runs(studies.study("table5", "full")[:1], train=True)
    assert not list(tmp_path.iterdir())
