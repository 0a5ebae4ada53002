"""The generated parts of README.md and docs/: the stored results as tables, and what follows from pyproject.toml."""

import re
import tomllib
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pandas as pd

from ammlib.data.files import home
from ammlib.margin.classifier import choose
from ammlib.report.cost import PAPER, SCREENED, scaling
from ammlib.report.frame import COMPARED_WITH, LONGER, compare
from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS, load, net_label
from ammlib.report.tables import aligned, as_markdown, named, number, yes_no
from ammlib.report.tightness import mean_margins, nearness
from ammlib.training.recipes import label

TABLES = ("table1", "table2", "table3", "table4", "table5", "table6")
CONTROLS = ("control_liunet", "all_images", "all_images_svhn")  # what is fine-tuned beside what trains as long without
LINES = 15  # of the short table
METHOD = "CPU time, interleaved; growth of the resident size in fresh processes."
HEADER = ("data", "net", "method", "error %, paper", "ours", "margin, paper", "ours", "n", "scale", "same direction")


def results_table() -> str:
    """Every method that has run, with the spread over seeds and the direction; then what has not run."""
    rows = results_rows()
    nets = rows[rows.shown].groupby(["dataset", "arch"], sort=False)["n"].sum().reset_index()
    missing = nets[nets.n == 0].groupby("dataset", sort=False)["arch"].unique()
    notes = [f"\nNot run here on {dataset}: {', '.join(nets)}." for dataset, nets in missing.items()]
    return as_markdown(aligned([HEADER, *lines_of(rows)])).replace(" no", " **no**") + "\n".join(["", *notes])


def short_table() -> str:
    """The first lines of it, with means alone."""
    lines = [
        [re.sub(r" ± [\d.]+", "", cell).replace(" → ", "→") for cell in line[:-1]] for line in lines_of(results_rows())
    ]
    return as_markdown(aligned([HEADER[:-1], *lines[:LINES]]))


def results_rows() -> pd.DataFrame:
    """The paper's tables, full size first, then AMM; with controls, and AMM at the scale of what it is held against."""
    short = compare("table2", "short").query("method in ['reference', 'amm'] and n > 0")
    rows = pd.concat([short, *map(compare, TABLES), *map(compare, CONTROLS)]).drop_duplicates(["digest", "metric"])
    order = {"scale": lambda scale: scale != "full", "method": lambda method: method != "amm"}
    return rows.sort_values(list(order), key=lambda column: column.map(order[column.name]), kind="stable")


def lines_of(rows: pd.DataFrame) -> list[list[str]]:
    """One line for each method that has run: from the reference to it, in the paper and here."""
    shown = rows[rows.shown & ~rows.method.isin(COMPARED_WITH) & (rows.n > 0)]
    lines = []
    for _, metrics in shown.groupby(["dataset", "arch", "method", "extent"], sort=False):
        cells, verdicts = [], []
        for own in metrics.itertuples():
            same = rows[(rows.dataset == own.dataset) & (rows.arch == own.arch) & (rows.scale == own.scale)]
            same = same[same.metric == own.metric]
            reference = same[(same.method == "reference") & (same.condition == "")].iloc[0]
            controls = same[((same.method == "control") | (same.condition == LONGER)) & (same.n > 0)]
            beside = "".join(f" (control {number(control)})" for control in controls.ours)
            theirs = number(reference.paper, reference.paper_std), number(own.paper, own.paper_std, own.bound)
            ours = number(reference.ours, reference["std"]), number(own.ours, own.std) + beside
            cells += [" → ".join(theirs) if own.paper == own.paper else "", " → ".join(ours)]
            verdicts += [f"{own.metric} {yes_no(own.same_direction)}"] if pd.notna(own.same_direction) else []
        runs = f"{reference.n}, {own.n}"
        lines.append([own.dataset, own.arch, named(own.method), *cells, runs, own.extent, ", ".join(verdicts)])
    return lines


def bench_table() -> str:
    """What a step and DeepFool cost, from results/bench."""
    steps, deepfool = load("steps"), load("deepfool")
    nets = steps["nets"]
    lines = [
        slower(steps),
        "",
        f"| | {' | '.join(map(net_label, nets.values()))} |",
        "| --- " * (len(nets) + 1) + "|",
    ]

    def add(name: str, cells: Iterable[str]) -> None:
        lines.append(f"| {name} | {' | '.join(cells)} |")

    for of, variant in product(("time", "memory"), VARIANTS):
        add(f"{of} of a step, {variant}", (f"{net[of][variant][-1]:.1f}x plain" for net in nets.values()))
    add("a plain step", (f"{net['plain_ms']:.0f} ms, {net['plain_mb']:.0f} MB" for net in nets.values()))
    add("batch, misclassified", (f"{net['batch']}, {100 * net['misclassified']:.0f} %" for net in nets.values()))
    for part in PARTS_OF_STEP:
        share = "of a screened step: " + part
        add(share, (f"{100 * part_of(net, part):.0f} %" for net in nets.values()))
    for package, name in (("foolbox", "foolbox"), ("adv_lib", "adv-lib")):
        title = f"DeepFool: faster than {name} {deepfool['versions'].get(name, '')}"
        cells = [faster(deepfool["nets"].get(arch), package) for arch in nets]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    about = f"{steps['machine']}, one thread, torch {steps['versions']['torch']}; u = {steps['steps'][-1]}"
    return "\n".join([*lines, "", f"{about}; {METHOD}"])


def slower(steps: dict) -> str:
    """The one number that a user asks for, in a sentence."""
    spans = {}
    for of in PAPER:
        values = [net[of][SCREENED][-1] for net in steps["nets"].values()]
        spans[of] = f"{min(values):.1f} to {max(values):.1f}"
    few, many = (
        f"{net['time'][SCREENED][-1]:.1f} times as long with {100 * net['misclassified']:.0f} % misclassified"
        for net in (steps["nets"][name] for name in ("resnet20_converged", "resnet20"))
    )
    ours = f"takes **{spans['time']} times as long** as a plain one and {spans['memory']} times its memory"
    theirs = "{} to {} times the time and {} to {} times the memory".format(*PAPER["time"], *PAPER["memory"])
    return (
        f"With the defaults (MIN, screened, six iterations) a training step {ours}.\n"
        f"Fewer wrong samples make it cheaper: ResNet-20 takes {many}, converged {few}.\n"
        f"The paper reports {theirs}."
    )


def part_of(net: dict, part: str) -> float:
    parts = net["parts_ms"][SCREENED]
    return parts[part] / sum(parts.values())


def faster(net: dict | None, package: str) -> str:
    """On a model as after .eval(), and with frozen parameters."""
    if not net or package not in net["mean_norm"]:
        return ""
    usual, frozen = (f"{times[package] / times['ammlib']:.1f}x" for times in net["seconds"].values())
    return f"{usual} ({frozen} frozen)"


def tightness_table() -> str:
    """How far each attack's norms are from the best of all, and the margins, from results/bench."""
    measured = load("tightness")
    attacks = {"deepfool": "DeepFool", "tight": "tight", "DDN (foolbox)": "DDN", "FAB (adv-lib)": "FAB"}
    heads = [f"{name}, x best (time)" for name in attacks.values()]
    lines = ["| net | method | " + " | ".join([*heads, "margin, DeepFool", "margin, tight"]) + " |"]
    lines.append("| --- " * (len(heads) + 4) + "|")
    for arch, net in measured["nets"].items():
        for method, found in net["methods"].items():
            compared = nearness(found["compared"])
            cells = [f"{compared[a].ratio:.3f} ({compared[a].slower:.0f}x)" if a in compared else "" for a in attacks]
            lines.append(
                " | ".join([f"| {arch}", label(method), *cells, *map("{:.2f}".format, mean_margins(found))]) + " |"
            )
    return "\n".join(lines)


def cost_in_short() -> str:
    """The two numbers that a newcomer asks for."""
    values = [net["time"][SCREENED][-1] for net in load("steps")["nets"].values()]
    nets = load("tightness")["nets"].values()
    ratios = [nearness(found["compared"])["deepfool"].ratio for net in nets for found in net["methods"].values()]
    return (
        f"With the defaults a training step takes {min(values):.1f} to {max(values):.1f} times as long as a plain one\n"
        f"([cost](docs/cost.md)). DeepFool overstates margins by {100 * min(ratios) - 100:.0f} to "
        f"{100 * max(ratios) - 100:.0f} %, and AMM enlarges the real ones too\n([tightness](docs/tightness.md))."
    )


def address() -> str:
    """Of the repository, as pyproject.toml has it."""
    return tomllib.loads((home() / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]


def badges() -> str:
    shield = "https://img.shields.io/badge"
    return "\n".join(
        [
            f"[![CI]({address()}/actions/workflows/ci.yml/badge.svg)]({address()}/actions/workflows/ci.yml)",
            f"[![MIT licence]({shield}/licence-MIT-blue)](LICENSE)",
            f"[![Python 3.11 to 3.13]({shield}/python-3.11_to_3.13-blue)](pyproject.toml)",
        ]
    )


def install() -> str:
    git = f"git+{address()}"
    return f"""```sh
pip install {git}
pip install "ammlib[notebooks] @ {git}"    # with JupyterLab; also [grid], [test]
```"""


def live() -> str:
    """Links that open the notebooks which need no data."""
    repository = address().removeprefix("https://github.com/")
    colab = "https://colab.research.google.com/github/{}/blob/main/notebooks/{}.ipynb"
    names = ("00_quickstart", "01_linear_case", "02_toy_boundaries")
    links = ", ".join(f"[{name[:2]}]({colab.format(repository, name)})" for name in names)
    binder = f"https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/notebooks"
    return f"""Nothing to install: [all of them on Binder]({binder}), or on Colab {links}, where a first cell must hold

```text
!git clone -q {address()} amm
%cd amm
```"""


def scaling_table() -> str:
    """A step on one process and on two, from results/bench."""
    return as_markdown(scaling(load("scaling")))


SECTIONS = {
    "badges": badges,
    "short": short_table,
    "costs": cost_in_short,
    "install": install,
    "live": live,
    "results": results_table,
    "bench": bench_table,
    "tightness": tightness_table,
    "scaling": scaling_table,
}
BLOCK = re.compile(r"(<!-- (\w+)[^>]*-->\n).*?(<!-- /\2 -->)", re.DOTALL)


def pages() -> list[Path]:
    return [home() / "README.md", *sorted((home() / "docs").glob("*.md"))]


def render(text: str) -> str:
    """A page with every generated section made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{choose('section', found[2], SECTIONS)()}\n{found[3]}", text)


def write() -> list[str]:
    """Make the generated sections anew; the pages that this changed."""
    changed = []
    for page in pages():
        text = page.read_text("utf-8")
        if (new := render(text)) != text:
            page.write_text(new, "utf-8")
            changed.append(page.name)
    return changed
