"""The figures of the notebooks."""

from ammlib.report.figures.cost import attack_times, cost_growth, cost_parts, cost_ratios, screening_course
from ammlib.report.figures.images import gallery, margin_histogram, margin_panels, pushed, show
from ammlib.report.figures.plane import boundary, boundary_line
from ammlib.report.figures.systems import error_against_margin
from ammlib.report.figures.tightness import draw_perturbations, margins_by_attack, ratios_to_best, robust_accuracy
from ammlib.report.figures.trainings import along_training, convergence, grid_search, sweep
from ammlib.report.style import CLASSES, COLOURS, figures_root, legend_below, save, style_of

__all__ = [
    "CLASSES",
    "COLOURS",
    "along_training",
    "attack_times",
    "boundary",
    "boundary_line",
    "convergence",
    "cost_growth",
    "cost_parts",
    "cost_ratios",
    "draw_perturbations",
    "error_against_margin",
    "figures_root",
    "gallery",
    "grid_search",
    "legend_below",
    "margin_histogram",
    "margin_panels",
    "margins_by_attack",
    "pushed",
    "ratios_to_best",
    "robust_accuracy",
    "save",
    "screening_course",
    "show",
    "style_of",
    "sweep",
]
