"""What the method costs, from the stored measurements: a text for each part, and what follows from them."""

from collections.abc import Iterable, Sequence
from statistics import mean
from typing import Any

import numpy as np

from ammlib.report.measurements import PARTS_OF_STEP, VARIANTS, Measured, net_label
from ammlib.report.tables import Table, aligned
from ammlib.training.recipes import Recipe, make_recipe
from ammlib.training.runs import load_run

PAPER = {"time": (6, 14), "memory": (2, 4)}  # section 4.5, as ratios to plain cross-entropy
SCREENED, EXACT, AVG = VARIANTS
TIME_AIMS = {  # ratios with six iterations, aimed at after a prototype
    SCREENED: {"mlp": 3.0, "lenet": 4.0, "resnet20": 3.3, "resnet20_converged": 2.4},
    EXACT: {"mlp": 6.5, "lenet": 15.0},
    AVG: {"mlp": 8.0},
}
MEMORY_AIM, SPEED_AIM = 1.5, 5.0  # of MIN, screened; of DeepFool against foolbox
PROMISE = {"found": 0.995, "mean cosine": 0.999}


def steps(measured: Measured) -> str:
    """Time and memory of all nets, variants and iterations."""
    return "\n\n".join([plain(measured), *(ratios(measured, of) for of in PAPER), shares(measured)])


def plain(measured: Measured) -> str:
    """What the ratios are ratios to."""
    rows = [("net", "batch", "misclassified", "plain step", "its memory", "rounds", "images")]
    for net in measured["nets"].values():
        wrong, time, memory = f"{net['misclassified']:.0%}", f"{net['plain_ms']:.0f} ms", f"{net['plain_mb']:.0f} MB"
        rows.append((net_label(net), str(net["batch"]), wrong, time, memory, str(net["repeats"]), net["images"]))
    return aligned(rows)


def ratios(measured: Measured, of: str) -> str:
    """Ratios to plain of "time" or "memory", by iterations u."""
    rows = [(f"{of}, x plain", "", *(f"u={u}" for u in measured["steps"]))]
    for net in measured["nets"].values():
        rows += [(net_label(net), name, *(f"{r:.1f}" for r in values)) for name, values in net[of].items()]
    return aligned(rows)


def shares(measured: Measured) -> str:
    """Where the time of a step with six iterations goes, in %."""
    rows = [("share of a step, %", "", *PARTS_OF_STEP)]
    for net in measured["nets"].values():
        for name, parts in net["parts_ms"].items():
            total = sum(parts.values())
            rows.append((net_label(net), name, *(f"{100 * parts[part] / total:.0f}" for part in PARTS_OF_STEP)))
    return aligned(rows)


def launches(measured: Measured) -> str:
    """What a step launches and how often it waits for the device, by strategy."""
    rows = [("net", "strategy", "launches", "x plain", "waits for the device")]
    for net in measured["nets"].values():
        plain_launches, _ = net["launches_and_waits"]["plain"]
        for name, (count, waits) in net["launches_and_waits"].items():
            ratio = "" if name == "plain" else f"{count / plain_launches:.1f}"
            rows.append((net_label(net), name, str(count), ratio, str(waits)))
    return aligned(rows)


def exponent(values: Sequence[float], times: Sequence[float]) -> float:
    """p of the power law time ~ value^p that fits best on a log-log scale."""
    return float(np.polyfit(np.log(values), np.log(times), 1)[0])


def growth(measured: Measured) -> str:
    """Exponents p of time ~ value^p, and the screened step as a ratio to plain at both ends."""
    rows = [("net", "over", "exponents: plain", *VARIANTS, "screened, x plain")]
    for arch, quantities in measured["nets"].items():
        for quantity, times in quantities.items():
            values = measured["values"][quantity]
            span = f"{quantity}, {values[0]:g} to {values[-1]:g}"
            exponents = (f"{exponent(values, times[name]):z.2f}" for name in ("plain", *VARIANTS))
            first, last = (times[SCREENED][end] / times["plain"][end] for end in (0, -1))
            rows.append((arch, span, *exponents, f"{first:.1f} to {last:.1f}"))
    return aligned(rows)


def screened_and_exact(dataset: str, arch: str, **changes: Any) -> dict[str, Recipe]:
    """The short recipe with screening and without."""
    return {
        name: make_recipe(dataset, arch, "amm", "short", **changes, screen=screen)
        for name, screen in (("screened", "auto"), ("exact", None))
    }


def screening_summary(net: dict[str, Any]) -> dict[str, float | None]:
    """Shares of the exact selections that were found and of others added, cosines, and the two final errors in %."""
    cosines = [cosine for cosine in net["cosine"] if cosine is not None]
    recipes = screened_and_exact(net["dataset"], net["arch"], **net["changes"])
    runs = {name: load_run(recipe, 0) for name, recipe in recipes.items()}
    return {
        "selections": sum(net["exact"]),
        "found": sum(net["found"]) / sum(net["exact"]),
        "added": sum(net["added"]) / sum(net["exact"]),
        "mean cosine": mean(cosines),
        "least cosine": min(cosines),
        "attacked": mean(net["attacked"]) / net["batch"],
        **{f"error, {name}": None if run is None else run.metrics["error"] for name, run in runs.items()},
    }


def screening(measured: Measured) -> str:
    """What screening keeps of the exact method over a whole run."""
    rows = [("", *measured["nets"])]
    nets = [(net, screening_summary(net)) for net in measured["nets"].values()]

    def add(name: str, cells: Iterable[str]) -> None:
        rows.append((name, *cells))

    add("comparisons along the run", (str(len(net["step"])) for net, _ in nets))
    add("exact selections", (str(found["selections"]) for _, found in nets))
    add(f"of these kept by screening (promise: {PROMISE['found']:.1%})", (f"{f['found']:.2%}" for _, f in nets))
    add("kept by screening alone", (f"{found['added']:.2%}" for _, found in nets))
    add(f"gradient cosine, mean (promise: {PROMISE['mean cosine']})", (f"{f['mean cosine']:.5f}" for _, f in nets))
    add("gradient cosine, least", (f"{found['least cosine']:.3f}" for _, found in nets))
    add("samples of a batch that take a first step", (f"{found['attacked']:.0%}" for _, found in nets))
    for name in ("screened", "exact"):
        errors = (found[f"error, {name}"] for _, found in nets)
        add(f"final test error, {name}", ("not run" if error is None else f"{error:.2f} %" for error in errors))
    return aligned(rows)


def deepfool(measured: Measured) -> str:
    """Seconds and norms of the three implementations, on models with trainable and with frozen parameters."""
    rows = [("net", "parameters", "DeepFool of", "seconds", "x ammlib", "mean norm", "median norm", "fooled")]
    for arch, net in measured["nets"].items():
        for state, times in net["seconds"].items():
            for name, seconds in times.items():
                norms = (f"{net[key][name]:.4f}" for key in ("mean_norm", "median_norm"))
                slower = f"{seconds / times['ammlib']:.1f}"
                rows.append((arch, state, name, f"{seconds:.2f}", slower, *norms, f"{net['fooled'][name]:.1%}"))
    missing = {"foolbox", "adv_lib"} - set().union(*(net["mean_norm"] for net in measured["nets"].values()))
    hint = [f"not installed: {', '.join(sorted(missing))}; `make bench` installs them"] if missing else []
    return aligned(rows, *hint)


def scaling(measured: Measured) -> Table:
    """Milliseconds of a step on one process and on several."""
    one, several = measured["processes"]
    rows = [("net", "method", f"{one} process", f"{several} processes", "speed-up")]
    for arch, methods in measured["nets"].items():
        for method, (alone, shared) in methods.items():
            rows.append((arch, method, f"{alone:.1f} ms", f"{shared:.1f} ms", f"{alone / shared:.2f}x"))
    return aligned(rows)


def aims(steps: Measured, deepfool: Measured) -> str:
    """Our own aims beside what was measured, with six iterations."""
    rows = [("aim", "net", "aimed at", "measured", "met")]

    def add(what: str, net: str, aim: float, value: float, least: bool = False) -> None:
        met = value >= aim if least else value <= aim
        words = f"{'at least' if least else 'at most'} {aim:g}x"
        rows.append((what, net, words, f"{value:.1f}x", "yes" if met else "no"))

    for name, aimed in TIME_AIMS.items():
        for arch in (arch for arch in aimed if arch in steps["nets"]):
            add(f"time, {name}", arch, aimed[arch], steps["nets"][arch]["time"][name][-1])
    for arch, net in steps["nets"].items():
        add(f"memory, {SCREENED}", arch, MEMORY_AIM, net["memory"][SCREENED][-1])
    for arch, net in deepfool["nets"].items():
        for state, times in net["seconds"].items():
            if "foolbox" in times:
                speed = times["foolbox"] / times["ammlib"]
                add(f"DeepFool, speed against foolbox, {state}", arch, SPEED_AIM, speed, least=True)
    return aligned(rows)


def paper_ranges(measured: Measured) -> str:
    """Where the ratios with most iterations lie beside the paper's ranges, a line for each variant."""
    lines = []
    for of, (low, high) in PAPER.items():
        for name in VARIANTS:
            values = [net[of][name][-1] for net in measured["nets"].values()]
            sides = {
                "below": sum(value < low for value in values),
                "within": sum(low <= value <= high for value in values),
                "above": sum(value > high for value in values),
            }
            where = ", ".join(f"{side} on {count}" for side, count in sides.items() if count)
            span = f"{min(values):.1f} to {max(values):.1f} times plain"
            lines.append((f"{of}, {name}", span, f"{low} to {high}", f"{where} of {len(values)} nets"))
    return aligned([("", "ours", "paper", "ours are"), *lines])
