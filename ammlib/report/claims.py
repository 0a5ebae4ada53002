"""Do the stored runs keep the orders that the paper claims?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev

from ammlib.report.tables import TRIAL, Row, aligned, is_trial

HEADER = ("holds", "net", "condition", "metric", "claim", "ours", "change", "paper")


@dataclass(frozen=True)
class Side:
    """What stands on one side of a < or >: our values, if they can tell anything, and as text ours and the paper's."""

    values: tuple[float, ...]
    ours: str
    paper: str


@dataclass(frozen=True)
class Comparison:
    """A claim that one mean is lower (higher) than another."""

    place: tuple[str, str, str]  # net, condition, metric
    sign: str  # < or >
    terms: tuple[str, str]
    left: Side
    right: Side

    @property
    def holds(self) -> bool | None:
        """None before both sides have run, and where they are only trials."""
        if not (self.left.values and self.right.values):
            return None
        left, right = mean(self.left.values), mean(self.right.values)
        return left < right if self.sign == "<" else left > right

    @property
    def close(self) -> bool:
        """The difference is no more than the standard deviations over the seeds together."""
        sides = (self.left.values, self.right.values)
        spread = sum(stdev(values) for values in sides if len(values) > 1)
        return self.holds is not None and abs(mean(sides[0]) - mean(sides[1])) <= spread

    def cells(self) -> tuple[str, ...]:
        word, change = {None: "?", True: "yes", False: "no"}[self.holds], ""
        if self.holds is not None:
            percent = 100 * (mean(self.left.values) / mean(self.right.values) - 1)
            change = f"{percent:+.0f} %{', within the spread' if self.close else ''}"
        paper = f"{self.left.paper} | {self.right.paper}" if self.left.paper and self.right.paper else ""
        claim = f" {self.sign} ".join(self.terms)
        return word, *self.place, claim, f"{self.left.ours} | {self.right.ours}", change, paper


def verdict(rows: Sequence[Row], *claims: str) -> str:
    """A conclusion, then a line for each comparison that the claims make.

    A claim such as "error: avg_exp < avg_inv < avg_lin" or "margin: amm > reference" is about every net and condition
    among the rows; a term of it may also be a method at one condition ("amm train=20000") or a number.
    """
    found = [comparison for claim in claims for comparison in comparisons(rows, claim)]
    told, scale = [c for c in found if c.holds is not None], rows[0].recipe.scale
    yes, close, open_ = sum(c.holds for c in told), sum(c.close for c in told), len(found) - len(told)
    word = "reproduced" if yes == len(told) else "partly reproduced" if yes else "not reproduced"
    word = f"{word}{' so far' if open_ else ''} at {scale} scale: {yes} of {len(told)} comparisons as in the paper"
    lines = [word if told else f"not run at {scale} scale"]
    if close:
        lines.append(f"differences within the spread of the seeds: {close}")
    if open_:
        missing = dict.fromkeys(row.recipe.key for row in rows if not row.values)
        reason = f"missing runs: {', '.join(missing)}" if missing else f"trials on at most {TRIAL:,} images"
        lines.append(f"{open_} of {len(found)} cannot be told yet; {reason}")
    return "\n".join([*lines, "", aligned([HEADER, *(c.cells() for c in found)])])


def comparisons(rows: Sequence[Row], claim: str) -> Iterator[Comparison]:
    """A claim taken apart: each pair of neighbours, for each net and condition unless the terms name their own."""
    metric, _, order = claim.partition(": ")
    known = {(row.recipe.arch, row.condition, row.recipe.method): row for row in rows if row.metric == metric}
    sign = ">" if " > " in order else "<"
    pairs = list(pairwise(order.split(f" {sign} ")))
    if not (known and pairs):
        raise ValueError(f"a claim is like 'error: amm < reference', about a metric of the rows; got {claim!r}")
    fixed = all(" " in term or is_number(term) for pair in pairs for term in pair)
    for arch, condition in dict.fromkeys((arch, "" if fixed else condition) for arch, condition, _ in known):
        for pair in pairs:
            sides = (side(term, arch, condition, known) for term in pair)
            yield Comparison((arch, condition, metric), sign, pair, *sides)


def side(term: str, arch: str, condition: str, known: Mapping[tuple[str, str, str], Row]) -> Side:
    if is_number(term):
        return Side((float(term),), term, term)
    method, _, own = term.partition(" ")
    row = known.get((arch, own or condition, method))
    if row is None:
        raise ValueError(f"no row for {term!r} of {arch}{f' at {condition}' if condition else ''}")
    return Side(() if is_trial(row.recipe) else row.values, row.ours, str(row.paper or ""))


def is_number(term: str) -> bool:
    return term.replace(".", "", 1).isdecimal()
