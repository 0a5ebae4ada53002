"""The generated parts of README.md: paper versus ours from the stored runs, and the stored measurements of cost."""

import json
import re

from ammlib.bench import VARIANTS
from ammlib.files import home
from ammlib.recipes import label
from ammlib.runs import results_root
from ammlib.tables import by_recipe, compare

SHOWN = (("table1", "short"), ("table2", "short"), ("table3", "short"))
HEADER = ("data", "net", "method", "error %, paper", "ours", "margin, paper", "ours", "scale", "same direction")


def results_table() -> str:
    """One line a recipe: error and margin of the paper and of our runs."""
    rows = by_recipe(row for name, scale in SHOWN for row in compare(name, scale))
    lines = [f"| {' | '.join(HEADER)} |", "| --- " * len(HEADER) + "|"]
    for recipe, metrics in rows.items():
        cells = [recipe.dataset, recipe.arch, label(recipe.method)]
        for row in metrics.values():
            cells += ["" if row.paper is None else str(row.paper), row.ours]
        verdicts = {name: row.same_direction for name, row in metrics.items() if row.same_direction is not None}
        words = [f"{name} {'yes' if verdict else '**no**'}" for name, verdict in verdicts.items()]
        lines.append(f"| {' | '.join([*cells, recipe.scale, ', '.join(words)])} |")
    return "\n".join(lines)


def bench_table() -> str:
    """Ratios to a plain training step from results/bench/method.json."""
    stored = json.loads((results_root() / "bench" / "method.json").read_text("utf-8"))
    results = stored["results"]
    lines = [f"| | {' | '.join(r['arch'] for r in results)} |", "| --- " * (len(results) + 1) + "|"]

    def add(name: str, cells: list[str]) -> None:
        lines.append(f"| {name} | {' | '.join(cells)} |")

    for variant in list(VARIANTS)[1:]:
        add(f"time of a step, {variant}", [f"{r['ratio'][variant]:.1f}x plain" for r in results])
    add("time of a plain step", [f"{r['milliseconds']['plain']:.0f} ms" for r in results])
    add("peak memory, MIN + EXP, screened", [f"{r['peak_ratio']['MIN + EXP, screened']:.2f}x plain" for r in results])
    foolbox = [f"{r['foolbox']['speed_up']:.1f}x" if r["foolbox"] else "" for r in results]
    add("DeepFool: faster than foolbox 3.3.4", foolbox)
    for part in results[0]["parts_of_screened_step"]:
        add(f"— of a screened step: {part}", [f"{r['parts_of_screened_step'][part]:.0f} ms" for r in results])
    data = ", ".join(f"{r['arch']} on {r['images']}" for r in results)
    about = f"Batch {stored['batch']}, one thread, torch {stored['torch']}, {data}; CPU time, medians, interleaved."
    return "\n".join([*lines, "", about])


SECTIONS = {"results": results_table, "bench": bench_table}


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


if __name__ == "__main__":
    write()
