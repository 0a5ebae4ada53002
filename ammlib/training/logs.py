"""Where the values of a training go while it runs: tables of comma-separated values, or TensorBoard."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ammlib.data.files import home
from ammlib.margin.classifier import choose

Callback = Callable[[str, int, dict[str, Any]], object]  # of "step" or "epoch", the steps taken, and values by name


class CsvLog:
    """Writes `step.csv` and `epoch.csv`; rows of steps that a killed training lost give way to those taken again, and
    so does what a kill has left half written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, kind: str, step: int, values: dict[str, Any]) -> None:
        path, row = self.folder / f"{kind}.csv", {"steps": step, **values}
        known = [] if kind in self.begun else self.rows(path, before=step)
        with path.open("a" if kind in self.begun else "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, row, extrasaction="ignore")
            if kind not in self.begun:
                writer.writeheader()
            writer.writerows([*known, row])
        self.begun.add(kind)

    def rows(self, path: Path, before: int) -> list[dict[str, str]]:
        if not path.exists():
            return []
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = [row for row in csv.DictReader(file) if (row.get("steps") or "").isdecimal()]
            return [row for row in rows if int(row["steps"]) < before]


class TensorBoardLog:
    """Writes events for TensorBoard, which has to be installed; lost steps are hidden by those taken again."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("--log tensorboard needs TensorBoard: pip install tensorboard; or take csv") from error
        self.folder, self.make = folder, SummaryWriter
        self.writer: SummaryWriter | None = None

    def __call__(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if self.writer is None:
            self.writer = self.make(self.folder, purge_step=step)
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(f"{kind}/{name}", value, step)
        if kind == "epoch":
            self.writer.flush()


LOGS: dict[str, Callable[[Path], Callback]] = {"csv": CsvLog, "tensorboard": TensorBoardLog}


def make_log(kind: str, name: str) -> Callback:
    """The log of a run, by its name, in out/logs."""
    return choose("log", kind, LOGS)(home() / "out" / "logs" / name)
