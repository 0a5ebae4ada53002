"""The generated parts of README.md: paper versus ours from the stored runs, and the stored measurements of cost."""

import re
from collections.abc import Callable
from itertools import product

from ammlib.data.files import home
from ammlib.report.cost import PAPER, SCREENED
from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS, load, net_label
from ammlib.report.tables import by_recipe, compare, extent
from ammlib.report.tightness import mean_margins, nearness
from ammlib.training.recipes import label

STUDIES = ("table1", "table2", "table3", "table4", "all_images", "control", "table6", "all_images_svhn")
METHOD = "CPU time, interleaved; growth of the resident size in fresh processes."
HEADER = ("data", "net", "method", "error %, paper", "ours", "margin, paper", "ours", "scale", "same direction")


def results_table() -> str:
    """One line a recipe: error and margin of the paper and of our runs; nets of which nothing has run come last."""
    found = [row for name in STUDIES for row in compare(name, "short")]
    nets = list(dict.fromkeys((row.recipe.dataset, row.recipe.arch) for row in found))
    rows = by_recipe(sorted(found, key=lambda row: nets.index((row.recipe.dataset, row.recipe.arch))))
    lines = [f"| {' | '.join(HEADER)} |", "| --- " * len(HEADER) + "|"]
    ran = {(recipe.dataset, recipe.arch) for recipe, metrics in rows.items() if metrics["error"].values}
    missing: dict[str, dict[str, None]] = {}  # data set -> nets
    for recipe, metrics in rows.items():
        if (recipe.dataset, recipe.arch) not in ran:
            missing.setdefault(recipe.dataset, {})[recipe.arch] = None
            continue
        cells = [recipe.dataset, recipe.arch, metrics["error"].method]
        for row in metrics.values():
            cells += ["" if row.paper is None else str(row.paper), row.ours]
        verdicts = {name: row.same_direction for name, row in metrics.items() if row.same_direction is not None}
        words = [f"{name} {'yes' if verdict else '**no**'}" for name, verdict in verdicts.items()]
        lines.append(f"| {' | '.join([*cells, extent(recipe), ', '.join(words)])} |")
    lines += [f"\nNot run on {dataset}: {', '.join(nets)}." for dataset, nets in missing.items()]
    return "\n".join(lines)


def bench_table() -> str:
    """What a step and DeepFool cost, from results/bench."""
    steps, deepfool = load("steps"), load("deepfool")
    nets = steps["nets"]
    lines = [
        slower(steps, load("growth")),
        "",
        f"| | {' | '.join(map(net_label, nets.values()))} |",
        "| --- " * (len(nets) + 1) + "|",
    ]

    def add(name: str, cell: Callable[[dict], str]) -> None:
        lines.append(f"| {name} | {' | '.join(map(cell, nets.values()))} |")

    for of, variant in product(("time", "memory"), VARIANTS):
        add(f"{of} of a step, {variant}", lambda net, of=of, v=variant: f"{net[of][v][-1]:.1f}x plain")
    add("a plain step", lambda net: f"{net['plain_ms']:.0f} ms, {net['plain_mb']:.0f} MB")
    add("batch, misclassified", lambda net: f"{net['batch']}, {100 * net['misclassified']:.0f} %")
    for part in PARTS_OF_STEP:
        share = "of a screened step: " + part
        add(share, lambda net, part=part: f"{100 * part_of(net, part):.0f} %")
    for package, name in (("foolbox", "foolbox"), ("adv_lib", "adv-lib")):
        title = f"DeepFool: faster than {name} {deepfool['versions'].get(name, '')}"
        cells = [faster(deepfool["nets"].get(arch), package) for arch in nets]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    about = f"{steps['machine']}, one thread, torch {steps['versions']['torch']}; u = {steps['steps'][-1]}"
    return "\n".join([*lines, "", f"{about}; {METHOD}"])


def slower(steps: dict, growth: dict) -> str:
    """The one number that a user asks for, in a sentence."""
    spans = {}
    for of in PAPER:
        values = [net[of][SCREENED][-1] for net in steps["nets"].values()]
        spans[of] = f"{min(values):.1f} to {max(values):.1f}"
    net, times = steps["nets"]["resnet20"], growth["nets"]["resnet20"]["misclassified"]
    many = f"{net['time'][SCREENED][-1]:.1f} times as long with {100 * net['misclassified']:.0f} % misclassified"
    few = f"{times[SCREENED][0] / times['plain'][0]:.1f} times with {100 * growth['values']['misclassified'][0]:.0f} %"
    ours = f"takes **{spans['time']} times as long** as a plain one and {spans['memory']} times its memory"
    theirs = "{} to {} times the time and {} to {} times the memory".format(*PAPER["time"], *PAPER["memory"])
    return (
        f"With the defaults (MIN, screened, six iterations) a training step {ours}.\n"
        f"Fewer wrong samples make it cheaper: on ResNet-20 it takes {many}, {few} (with labels made so).\n"
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


SECTIONS = {"results": results_table, "bench": bench_table, "tightness": tightness_table}


def render(text: str) -> str:
    """README.md with every generated section made anew."""
    for name, make in SECTIONS.items():
        pattern = rf"(<!-- {name}[^>]*-->\n).*?(<!-- /{name} -->)"
        text, found = re.subn(pattern, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"README.md needs one section between <!-- {name} --> and <!-- /{name} -->, has {found}")
    return text


def write() -> bool:
    """Make the generated sections of README.md anew; did anything change?"""
    path = home() / "README.md"
    text = path.read_text("utf-8")
    path.write_text(render(text), "utf-8")
    return render(text) != text
