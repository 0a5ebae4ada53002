"""Adversarial margin maximisation: measure the margin of any PyTorch classifier, and train for a larger one."""

from ammlib.amm import AMM
from ammlib.baselines import Elsayed
from ammlib.deepfool import deepfool
from ammlib.evaluate import margins
from ammlib.models import MODELS, make_model

__version__ = "0.1.0"
__all__ = ["AMM", "MODELS", "Elsayed", "deepfool", "make_model", "margins"]
