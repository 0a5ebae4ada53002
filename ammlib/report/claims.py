"""Do the stored runs keep the orders that the paper claims?"""

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise

from pandas import DataFrame

from ammlib.methods.registry import METHODS
from ammlib.report.frame import LARGEST_FIRST
from ammlib.report.tables import Table, named, number

COLUMNS = ("holds", "net", "condition", "claim", "ours", "n", "scale", "change", "paper")


class Verdict(str):
    """A conclusion in one line; a notebook shows it in bold. `details` has a line for each comparison."""

    details: Table

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        word, _, rest = self.partition(":")
        return f"<b>Verdict: {word}</b>:{rest}" if rest else f"<b>Verdict: {word}</b>"


def verdict(rows: DataFrame, *claims: str) -> Verdict:
    """What becomes of claims, each comparison at the largest scale at which both sides have run.

    A claim such as "error: avg_exp < avg_inv < avg_lin" or "margin: amm > reference" is about every net and condition
    among the rows; a term of it may also be a method at one condition ("amm train=20000") or a number.
    """
    found = table_of(rows, claims)
    hidden = [scale for scale in LARGEST_FIRST if scale in set(rows[(rows.n > 0) & ~rows.shown].scale)]
    notes = [
        f"at {scale} scale alone (-p scale {scale}): {conclusion(table_of(rows[rows.scale == scale], claims))}"
        for scale in hidden
    ]
    known = rows.paper.notna().any()
    line = Verdict(conclusion(found) + nearness(rows) if known else "none: of these nets the paper has no numbers")
    line.details = Table(found[list(COLUMNS)], *notes)
    return line


def table_of(rows: DataFrame, claims: Iterable[str]) -> DataFrame:
    return DataFrame([line for claim in claims for line in comparisons(rows, claim)], columns=[*COLUMNS, "close"])


def conclusion(found: DataFrame) -> str:
    """How many comparisons came out as in the paper, and at which scale."""
    told = found[found.holds != "?"]
    if told.empty:
        return "not run here"
    open_ = len(found) - len(told)
    yes, close = (told.holds == "yes").sum(), told.close.sum()
    word = "reproduced" if yes == len(told) else "partly reproduced" if yes else "not reproduced"
    by_scale = [(scale, told[told.scale == scale].holds == "yes") for scale in LARGEST_FIRST]
    scales = ", ".join(f"{holds.sum()} of {len(holds)} at {scale} scale" for scale, holds in by_scale if len(holds))
    text = f"{word}{' so far' if open_ else ''}: as in the paper are {scales}"
    text += f", {close} within the spread of the seeds" if close else ""
    return text + (f"; {open_} not run here" if open_ else "")


def nearness(rows: DataFrame) -> str:
    """How many means are those of the paper, where it gives a deviation."""
    distances = rows[rows.shown].distance.dropna().abs()
    equal = (distances <= 2).sum()
    return f"; {equal} of {len(distances)} errors equal the paper's within 2 standard errors" if len(distances) else ""


def comparisons(rows: DataFrame, claim: str) -> Iterator[dict]:
    """A claim taken apart: each pair of neighbours, for each net and condition unless the terms name their own."""
    metric, _, order = claim.partition(": ")
    sign = ">" if " > " in order else "<"
    pairs, rows = list(pairwise(order.split(f" {sign} "))), rows[rows.metric == metric]
    if rows.empty or not pairs:
        raise ValueError(f"a claim is like 'error: amm < reference', about a metric of the rows; got {claim!r}")
    known = {(row.arch, row.condition, row.method, row.scale): row for row in rows.itertuples()}
    fixed = all(" " in term or is_number(term) for pair in pairs for term in pair)
    shown = rows[rows.shown] if rows.shown.any() else rows
    for arch, condition in dict.fromkeys(zip(shown.arch, [""] * len(shown) if fixed else shown.condition, strict=True)):
        for pair in pairs:
            sides = {scale: [side(term, known, arch, condition, scale) for term in pair] for scale in LARGEST_FIRST}
            listed = {scale: (one, two) for scale, (one, two) in sides.items() if one is not None and two is not None}
            ran = {scale: both for scale, both in listed.items() if all(one["n"] for one in both)}
            for scale, both in list((ran or listed).items())[:1]:  # none where the net has no such row, as a control
                place = {"net": arch, "condition": condition, "scale": scale if ran else ""}
                yield {
                    **place,
                    "claim": f"{metric}: {both[0]['name']} {sign} {both[1]['name']}",
                    **compared(*both, sign),
                }


def side(term: str, known: dict, arch: str, condition: str, scale: str) -> dict | None:
    """What stands on one side of a < or >; None where there is no such row."""
    if is_number(term):
        return {"name": term, "n": math.inf, "mean": float(term), "std": 0.0, "ours": term, "paper": term}
    method, _, own = term.partition(" ")
    if method not in METHODS:
        raise ValueError(f"no row for {term!r}; {method!r} is none of {', '.join(METHODS)}")
    row = known.get((arch, own or condition, method, scale))
    if row is None:
        return None
    texts = {"ours": number(row.ours, row.std), "paper": number(row.paper, row.paper_std, row.bound)}
    return {"name": named(method, own), "n": row.n, "mean": row.ours, "std": row.std if row.n > 1 else 0.0, **texts}


def compared(left: dict, right: dict, sign: str) -> dict:
    """Whether the left mean is lower (higher) than the right one, by how much, and as texts."""
    paper = f"{left['paper']} | {right['paper']}" if left["paper"] and right["paper"] else ""
    if not (left["n"] and right["n"]):
        return {"holds": "?", "close": False, "ours": "not run here", "n": "", "change": "", "paper": paper}
    difference = left["mean"] - right["mean"]
    holds, close = difference < 0 if sign == "<" else difference > 0, abs(difference) <= left["std"] + right["std"]
    change = f"{100 * (left['mean'] / right['mean'] - 1):+.0f} %{', within the spread' if close else ''}"
    runs = " | ".join(str(one["n"]) for one in (left, right) if one["n"] < math.inf)
    texts = {"ours": f"{left['ours']} | {right['ours']}", "n": runs, "paper": paper}
    return {"holds": "yes" if holds else "no", "close": close, "change": change, **texts}


def is_number(term: str) -> bool:
    return term.replace(".", "", 1).isdecimal()
