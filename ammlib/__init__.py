"""Adversarial margin maximisation: measure the margin of any PyTorch classifier, and train for a larger one."""

from ammlib.data import load_data
from ammlib.margin.amm import AMM
from ammlib.margin.baselines import Elsayed
from ammlib.margin.deepfool import deepfool
from ammlib.margin.margins import margins
from ammlib.models import MODELS, make_model
from ammlib.recipes import make_recipe, study
from ammlib.runs import run_or_load, trained_model
from ammlib.tables import compare
from ammlib.train import train

__version__ = "0.1.0"
__all__ = [
    "AMM",
    "MODELS",
    "Elsayed",
    "compare",
    "deepfool",
    "load_data",
    "make_model",
    "make_recipe",
    "margins",
    "run_or_load",
    "study",
    "train",
    "trained_model",
]
