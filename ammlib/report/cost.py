"""The stored measurements as text: a table for each part, and what follows from them."""

from collections.abc import Iterable
from statistics import fmean
from textwrap import fill
from typing import Any

from ammlib.bench.growth import exponent
from ammlib.bench.nets import VARIANTS
from ammlib.bench.screening import summary
from ammlib.bench.steps import PARTS
from ammlib.bench.tightness import comparisons
from ammlib.tables import aligned

Measured = dict[str, Any]
PAPER = {"time": (6, 14), "memory": (2, 4)}  # section 4.5, as ratios to plain cross-entropy
SCREENED, EXACT, AVG = VARIANTS
TIME_AIMS = {  # ratios with six iterations, aimed at after a prototype
    SCREENED: {"mlp": 2.5, "lenet": 3.5, "resnet20": 4.0},
    EXACT: {"mlp": 6.5, "lenet": 15.0},
    AVG: {"mlp": 8.0},
}
MEMORY_AIM, SPEED_AIM = 1.5, 5.0  # of MIN, screened; of DeepFool against foolbox
SHOWN_RADII = (0.5, 1.0, 2.0)
PROMISE = {"found": 0.995, "mean cosine": 0.999}


def net_label(net: Measured) -> str:
    """Such as "LeNet, CIFAR-10"."""
    names = {"mlp": "MLP", "lenet": "LeNet", "liunet": "LiuNet", "resnet20": "ResNet-20", "densenet40": "DenseNet-40"}
    return f"{names[net['arch']]}, {net['dataset'].upper().replace('CIFAR10', 'CIFAR-10')}"


def about(measured: Measured) -> str:
    """On what and how it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    return f"{measured['machine']}; {versions}\n{fill(measured['method'], 110)}"


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
    rows = [("share of a step, %", "", *PARTS)]
    for net in measured["nets"].values():
        for name, parts in net["parts_ms"].items():
            total = sum(parts.values())
            rows.append((net_label(net), name, *(f"{100 * parts[part] / total:.0f}" for part in PARTS)))
    return aligned(rows)


def growth(measured: Measured) -> str:
    """Exponents p of time ~ value^p, and the screened step as a ratio to plain at both ends."""
    rows = [("net", "over", "exponents: plain", *VARIANTS, "screened, x plain")]
    for arch, quantities in measured["nets"].items():
        for quantity, times in quantities.items():
            values = measured["values"][quantity]
            span = f"{quantity}, {values[0]:g} to {values[-1]:g}"
            exponents = (f"{exponent(values, times[name]):.2f}" for name in ("plain", *VARIANTS))
            first, last = (times[SCREENED][end] / times["plain"][end] for end in (0, -1))
            rows.append((arch, span, *exponents, f"{first:.1f} to {last:.1f}"))
    return aligned(rows)


def screening(measured: Measured) -> str:
    """What screening keeps of the exact method over a whole run."""
    rows = [("", *measured["nets"])]
    nets = [(net, summary(net)) for net in measured["nets"].values()]

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
    hint = f"\nnot installed: {', '.join(sorted(missing))}; `make bench` installs them" if missing else ""
    return aligned(rows) + hint


def tightness(measured: Measured) -> str:
    """Norms beside the best that any attack found, the ranking, and the time beside DeepFool's."""
    rows = [("net", "method", "attack", "mean norm", "x best", "at most", "rank correlation", "x DeepFool's time")]
    for arch, net in measured["nets"].items():
        for method, found in net["methods"].items():
            for attack, c in comparisons(found["compared"]).items():
                most = f"{c.largest:.2f}" + (f", {c.lost} not found" if c.lost else "")
                numbers = (f"{c.norm:.3f}", f"{c.ratio:.3f}", most, f"{c.rank:.3f}", f"{c.slower:.1f}")
                rows.append((arch, method, attack, *numbers))
    return aligned(rows)


def enlarged(measured: Measured) -> str:
    """By how much training for it enlarged the margin, by DeepFool and by the tight attack; accuracy under PGD."""
    radii = [measured["radii"].index(radius) for radius in SHOWN_RADII]
    at = (f"PGD, r={radius:g}" for radius in SHOWN_RADII)
    rows = [("net", "method", "DeepFool", "x reference", "tight", "x reference", "DeepFool / tight", *at)]
    for arch, net in measured["nets"].items():
        means = {method: mean_margins(found) for method, found in net["methods"].items()}
        for method, found in net["methods"].items():
            loose, near = means[method]
            grown = (value / before for value, before in zip(means[method], means["reference"], strict=True))
            by_deepfool, by_tight = (f"{ratio:.2f}" for ratio in grown)
            numbers = (f"{loose:.3f}", by_deepfool, f"{near:.3f}", by_tight, f"{loose / near:.2f}")
            rows.append((arch, method, *numbers, *(f"{found['robust'][i]:.0%}" for i in radii)))
    return aligned(rows)


def mean_margins(found: Measured) -> tuple[float, float]:
    """Of a net: DeepFool's and the tight one."""
    return fmean(found["norms"]["deepfool"]), fmean(found["norms"]["tight"])


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


def verdict(measured: Measured) -> str:
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
