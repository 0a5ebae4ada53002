"""Stored runs: one JSON file for each recipe and seed, from which every table and figure is made."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ammlib.data.files import home, write_atomically
from ammlib.training.recipes import Recipe


@dataclass(frozen=True)
class Run:
    """A finished run; all but `seconds` is the same each time on the same machine."""

    recipe: Recipe
    seed: int
    metrics: dict[str, float]  # error in %, margin (mean over the test images) and its quantiles
    history: list[dict[str, Any]]  # by epoch
    train_images: int
    weights: str  # SHA-256 of the trained weights
    versions: dict[str, str]
    device: str
    seconds: float  # of training, without evaluation

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "recipe": self.recipe.to_dict()}, indent=1, allow_nan=False) + "\n"


def results_root() -> Path:
    """`$AMMLIB_RESULTS`, or `results/` in the checkout."""
    return Path(os.environ.get("AMMLIB_RESULTS") or home() / "results")


def checkpoints_root() -> Path:
    """`$AMMLIB_CHECKPOINTS`, or `checkpoints/` in the checkout."""
    return Path(os.environ.get("AMMLIB_CHECKPOINTS") or home() / "checkpoints")


def run_name(recipe: Recipe, seed: int) -> str:
    return f"{recipe.key}/{recipe.scale}-{recipe.digest}-s{seed}"


def run_path(recipe: Recipe, seed: int) -> Path:
    return results_root() / "runs" / f"{run_name(recipe, seed)}.json"


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
        stored = json.loads(path.read_text("utf-8"))
        run = Run(**{**stored, "recipe": Recipe.from_dict(stored["recipe"])})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it to train anew") from error
    return run if run.recipe == recipe and run.seed == seed else None


def store_run(run: Run) -> Path:
    """Write the run file, whole or not at all."""
    path = run_path(run.recipe, run.seed)
    write_atomically(path, lambda file: file.write(run.to_json().encode()))
    return path
