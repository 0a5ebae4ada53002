"""Who enlarges the margin: the systems that the paper compares with, beside AMM, as a table and a verdict."""

import math
from collections.abc import Iterable
from typing import Any

from pandas import DataFrame

from ammlib.report.frame import compare, published
from ammlib.report.tables import Table, aligned, named, number

SHORT = {  # names beside a point, where the method's own is long
    "amm": "AMM",
    "elsayed": "Elsayed",
    "dlsvm_noise": "DLSVM + noise",
    "bayes_by_backprop": "Bayes",
    "sokolic": "Sokolić",
    "jacobian": "Hoffman",
    "boundary": "boundary",
}
KINDS = {
    "margin in feature space": ("l_softmax", "em_softmax", "dlsvm", "dlsvm_noise"),
    "contraction, small Jacobian": ("crn", "sokolic", "jacobian"),
    "noise": ("disturblabel", "dropconnect", "bayes_by_backprop"),
    "input margin": ("amm", "elsayed", "deep_defense", "mma", "boundary"),
}

LEAST = 0.05  # a smaller difference is none
RULE = (
    "larger, below, above: by more than 5 % and, with several seeds, by more than two combined standard deviations; "
    "factors: of DeepFool's margin, mean over all test images / of the tight margin of seed 0"
)


def summary(measured: dict[str, Any]) -> DataFrame:
    """One row for each net and method of the study: means over the seeds, and what was measured of seed 0.

    Columns: arch, method, `published` (its error in the paper, if that is of this net), `error` in % and `margin`
    (DeepFool's, of all test images) with `error_std` and `margin_std`, `deepfool` and `tight` (margins of the first
    images), `ms` of a training step, `x_plain`, times a plain one, `robust` accuracies in %.
    """
    found, place = compare("systems"), ["arch", "method"]
    ours, std = (found.pivot_table(value, place, "metric", sort=False, dropna=False) for value in ("ours", "std"))
    stated = errors_published().rename(columns={"value": "published"})[[*place, "published"]]
    rows = ours.join(std.add_suffix("_std")).reset_index().merge(stated, how="left", on=place)
    nets = {arch: net["methods"] for arch, net in measured.get("nets", {}).items()}
    known = [nets.get(row.arch, {}).get(row.method, {}) for row in rows.itertuples()]
    for name in ("deepfool", "tight", "ms", "x_plain"):
        rows[name] = [one.get(name, math.nan) for one in known]
    rows["robust"] = [[100 * share for share in one.get("robust", [])] for one in known]
    return rows


def errors_published() -> DataFrame:
    """The paper's errors on MNIST, its own and quoted ones, one for each net and method."""
    stated = published().query("dataset == 'mnist' and metric == 'error' and condition == '' and bound == ''")
    return stated.drop_duplicates(["arch", "method"], keep="last")


def table(measured: dict[str, Any]) -> Table:
    """The summary in words; empty where nothing has run."""
    rows, radii = summary(measured), [f"PGD {radius:g}" for radius in measured.get("radii", [])]
    header = ("net", "method", "published %", "error %", "margin", "tight", *radii, "ms a step", "x plain")
    cells = [header]
    for row in rows.itertuples():
        robust = [f"{share:.0f}" for share in row.robust] or [""] * len(radii)
        ours = number(row.error, row.error_std), number(row.margin, row.margin_std), number(row.tight)
        times = number(row.ms), number(row.x_plain)
        cells.append((row.arch, named(row.method), number(row.published), *ours, *robust, *times))
    quoted = errors_published().query("competitor")
    elsewhere = quoted[~quoted.arch.isin(rows.arch)].itertuples()
    others = (f"{named(row.method)} {number(row.value)} % ({row.arch}; {row.note})" for row in elsewhere)
    return aligned(cells, "published of other nets: " + ", ".join(others))


def verdict(measured: dict[str, Any]) -> Table:
    """For each kind of method and each net: which enlarge the margin, by what factor, and which are ahead of AMM."""
    header = ("kind", "net", "margin larger than the reference's", "not larger", "error below AMM's")
    cells = [(*header, "margin above AMM's, error not", "a step, x plain", "missing")]
    rows = summary(measured).set_index("method")
    for kind, methods in KINDS.items():
        for arch, own in rows.groupby("arch", sort=False):
            known = own.error.notna() & own.error.notna()["reference"]
            ran = [method for method in methods if known[method]]
            larger = [method for method in ran if exceeds(own, "margin", method, "reference")]
            lower = [method for method in ran if exceeds(own, "error", "amm", method)]
            wider = [method for method in ran if exceeds(own, "margin", method, "amm")]
            ahead = [method for method in wider if not exceeds(own, "error", method, "amm")]
            factors = {method: f"{short(method)} {factor(own, method)}" for method in ran}
            line = (
                listed((factors[method] for method in larger), bool(ran)),
                listed((factors[method] for method in ran if method not in larger), bool(ran)),
                listed(map(short, lower), bool(ran) and known["amm"]),
                listed(map(short, ahead), bool(ran) and known["amm"]),
                ", ".join(f"{short(method)} {own.x_plain[method]:.1f}" for method in ran if own.x_plain[method] > 0),
                ", ".join(short(method) for method in methods if method not in ran),
            )
            cells.append((kind, arch, *line))
    return aligned(cells, RULE)


def exceeds(rows: DataFrame, metric: str, one: str, other: str) -> bool:
    """Is it larger by more than 5 %, and by more than two combined standard deviations if there are several seeds?"""
    spread = math.hypot(*rows.loc[[one, other], f"{metric}_std"].fillna(0))
    return rows[metric][one] - rows[metric][other] > max(LEAST * rows[metric][other], 2 * spread)


def factor(rows: DataFrame, method: str) -> str:
    """How many times the reference's margin, by DeepFool and, if that was measured, by the tight attack."""
    deepfool, tight = (rows[name][method] / rows[name]["reference"] for name in ("margin", "tight"))
    return f"×{deepfool:.2f}" + (f" / {tight:.2f}" if tight > 0 else "")


def listed(names: Iterable[str], ran: bool) -> str:
    return ", ".join(names) or ("none" if ran else "not run")


def short(method: str) -> str:
    return SHORT.get(method, named(method))
