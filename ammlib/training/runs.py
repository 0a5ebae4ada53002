"""Stored runs: one JSON file for each recipe and seed, from which every table and figure is made."""

import json
import math
import os
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ammlib.data.files import SHIPPED, home, write_atomically
from ammlib.training.recipes import Recipe

DAMAGE = (ValueError, TypeError, KeyError, RecursionError)  # what reading a damaged run file raises
TO_TRY = ("digits32",)  # data whose runs are no results


@dataclass(frozen=True)
class Run:
    """A finished run; all but its times is the same each time on the same machine."""

    recipe: Recipe
    seed: int
    metrics: dict[str, float]  # error in %, margin (mean over the test images) and its quantiles
    history: list[dict[str, Any]]  # by epoch
    train_images: int
    weights: str  # SHA-256 of the trained weights
    versions: dict[str, str]
    device: str
    seconds: float  # of training steps alone
    # What came later is left out of the file where there is nothing to say: what was stored before stays valid.
    wall_seconds: float | None = None  # of training and evaluation together
    cpu_seconds: float | None = None  # likewise, over all threads of the main process
    data: str | None = None  # SHA-256 of the images and labels
    warnings: list[str] = field(default_factory=list)  # what made the training look dead

    def to_json(self) -> str:
        values = {**asdict(self), "recipe": self.recipe.to_dict()}
        said = {name: value for name, value in values.items() if value not in (None, []) or name not in LATER}
        return json.dumps(said, indent=1, allow_nan=False) + "\n"


LATER = [f.name for f in fields(Run) if (f.default, f.default_factory) != (MISSING, MISSING)]


def results_root(dataset: str = "") -> Path:
    """Where results go: `$AMMLIB_RESULTS`; or `results/` in the checkout or else in the current folder.

    Those on data that are there to try things out go to `out/` there.
    """
    folder = Path(os.environ.get("AMMLIB_RESULTS") or home() / ("out" if dataset in TO_TRY else "results"))
    return folder.expanduser()


def checkpoints_root() -> Path:
    """`$AMMLIB_CHECKPOINTS`, or `checkpoints/` beside `results/`."""
    return Path(os.environ.get("AMMLIB_CHECKPOINTS") or home() / "checkpoints").expanduser()


def run_name(recipe: Recipe, seed: int) -> str:
    return f"{recipe.key}/{recipe.scale}-{recipe.digest}-s{seed}"


def run_path(recipe: Recipe, seed: int) -> Path:
    """Where the run is or will be stored; one that came with an installed package stays there."""
    name = f"runs/{run_name(recipe, seed)}.json"
    own, shipped = results_root(recipe.dataset) / name, SHIPPED / name
    return shipped if shipped.exists() and not own.exists() else own


def checkpoint_path(recipe: Recipe, seed: int) -> Path:
    return checkpoints_root() / f"{run_name(recipe, seed)}.pt"


def weights_path(recipe: Recipe, seed: int) -> Path:
    """Where the trained weights are or will be: published ones in results/weights, others beside the checkpoints.

    The toy's, three numbers each, are all published.
    """
    name = f"{run_name(recipe, seed)}.safetensors"
    published = results_root() / "weights" / name.replace("/", "-")
    return published if recipe.family == "toy" or published.exists() else checkpoints_root() / name


def load_run(recipe: Recipe, seed: int) -> Run | None:
    """The stored run of exactly this recipe and seed, if there is one."""
    path = run_path(recipe, seed)
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text("utf-8"), parse_constant=_refuse)
        run = Run(**{**stored, "recipe": Recipe.from_dict(stored["recipe"])})
        if not all(math.isfinite(run.metrics[name]) for name in ("error", "margin")):
            raise ValueError("error and margin must be finite")
        if not (isinstance(run.weights, str) and isinstance(run.data, str | None)):
            raise ValueError("weights and data are told by their SHA-256")
        if not (isinstance(run.history, list) and all(isinstance(entry, dict) for entry in run.history)):
            raise ValueError("history must be a list of epochs")
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to train anew") from error
    return run if run.recipe == recipe and run.seed == seed else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def store_run(run: Run) -> Path:
    """Write the run file, whole or not at all."""
    path = results_root(run.recipe.dataset) / "runs" / f"{run_name(run.recipe, run.seed)}.json"
    write_atomically(path, lambda file: file.write(run.to_json().encode()))
    return path
