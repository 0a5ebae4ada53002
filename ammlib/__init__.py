"""Adversarial margin maximisation: measure the margin of any PyTorch classifier, and train for a larger one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ammlib.data.datasets import load_data
    from ammlib.margin.amm import AMM
    from ammlib.margin.baselines import Elsayed
    from ammlib.margin.deepfool import deepfool
    from ammlib.margin.margins import margins
    from ammlib.models import MODELS, make_model
    from ammlib.report.frame import compare, history, published, results
    from ammlib.training.execute import run_or_load, trained_model
    from ammlib.training.recipes import make_recipe
    from ammlib.training.studies import study
    from ammlib.training.train import train

__version__ = "0.1.0"
__all__ = [
    "AMM",
    "MODELS",
    "Elsayed",
    "compare",
    "deepfool",
    "history",
    "load_data",
    "make_model",
    "make_recipe",
    "margins",
    "published",
    "results",
    "run_or_load",
    "study",
    "train",
    "trained_model",
]

HOMES = {  # imported when first asked for: who measures margins needs no trainer, who draws needs no downloads
    "AMM": "ammlib.margin.amm",
    "Elsayed": "ammlib.margin.baselines",
    "MODELS": "ammlib.models",
    "compare": "ammlib.report.frame",
    "deepfool": "ammlib.margin.deepfool",
    "history": "ammlib.report.frame",
    "load_data": "ammlib.data.datasets",
    "make_model": "ammlib.models",
    "make_recipe": "ammlib.training.recipes",
    "margins": "ammlib.margin.margins",
    "published": "ammlib.report.frame",
    "results": "ammlib.report.frame",
    "run_or_load": "ammlib.training.execute",
    "study": "ammlib.training.studies",
    "train": "ammlib.training.train",
    "trained_model": "ammlib.training.execute",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *HOMES])
