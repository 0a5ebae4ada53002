"""What the steps of a training amount to: sums since the last entry of its history, their means, and signs of death."""

import math
from typing import Any

from torch import Tensor

from ammlib.margin.parts import Report

DEAD_AFTER = 3  # epochs, after which a net should know more than a constant


class Sums(dict[str, float]):
    """Sums over steps, by name, as checkpoints hold them."""

    @classmethod
    def of_step(cls, samples: int, wrong: int, loss: float, term: float | None, report: Report | None) -> "Sums":
        """What one step contributes; `loss` and `term` are means over its samples."""
        sums = cls(steps=1, samples=samples, loss=loss * samples, wrong=wrong)
        if term is not None:
            sums["regulariser"] = term * samples
        if report is not None:
            sums["kept"] = report.kept
            if not math.isnan(report.margin):
                sums |= {"margin": report.margin, "steps_with_margin": 1}
        return sums

    def add(self, other: "Sums") -> None:
        for name, value in other.items():
            self[name] = self.get(name, 0) + value

    def mean(self, name: str, per: str = "samples") -> float | None:
        return self[name] / self[per] if name in self else None

    @property
    def error(self) -> float:
        """In % of the samples that were trained on."""
        return 100 * (self["wrong"] / self["samples"])

    def means(self) -> dict[str, float | None]:
        """Per sample, or per step where that is what is counted; None of what the method does not have."""
        return {
            "loss": self.mean("loss"),
            "train_error": self.error,
            "regulariser": self.mean("regulariser"),
            "kept": self.mean("kept", per="steps"),
            "kept_margin": self.mean("margin", per="steps_with_margin"),
        }

    def line(self) -> dict[str, str]:
        """Of these what a progress bar shows."""
        values = {"error": f"{self.error:.2f}%"}
        if "regulariser" in self:
            values["reg"] = f"{self.mean('regulariser'):.3f}"
        if "kept" in self:
            values["kept"] = f"{self.mean('kept', per='steps'):.1f}"
        return values


def seems_dead(entry: dict[str, Any], y_test: Tensor, pulls: bool) -> str | None:
    """Why an entry of the history looks as if the training did not get anywhere, if it does; `pulls`: did the term of
    any step have a gradient?"""
    constant = 100 * (1 - float(y_test.bincount().max()) / len(y_test))
    if entry["epoch"] >= DEAD_AFTER and entry["test_error"] >= constant:
        return f"the error is not below that of a constant, {constant:.1f} %, in epoch {entry['epoch']}"
    if entry["kept"] == 0:
        return f"the regulariser kept no sample in epoch {entry['epoch']}"
    if entry["kept"] and not pulls:
        return f"the regulariser has no gradient in epoch {entry['epoch']}"
    return None
