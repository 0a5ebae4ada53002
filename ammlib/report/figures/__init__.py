"""The figures of the notebooks."""

from ammlib.plots.cost import attack_times, cost_growth, cost_parts, cost_ratios, screening_course
from ammlib.plots.images import gallery, margin_histogram, margin_panels
from ammlib.plots.plane import (
    boundary,
    boundary_line,
    draw_boundaries,
    draw_bounds,
    draw_covering,
    draw_line,
    draw_loss_over_b,
    draw_move,
    draw_strip,
    draw_turns,
    draw_weights,
)
from ammlib.plots.style import CLASSES, COLOURS, figures_root, save, style_of
from ammlib.plots.tightness import draw_perturbations, margins_by_attack, ratios_to_best, robust_accuracy
from ammlib.plots.trainings import along_training, convergence, grid_search, spread, sweep

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
    "draw_boundaries",
    "draw_bounds",
    "draw_covering",
    "draw_line",
    "draw_loss_over_b",
    "draw_move",
    "draw_perturbations",
    "draw_strip",
    "draw_turns",
    "draw_weights",
    "figures_root",
    "gallery",
    "grid_search",
    "margin_histogram",
    "margin_panels",
    "margins_by_attack",
    "ratios_to_best",
    "robust_accuracy",
    "save",
    "screening_course",
    "spread",
    "style_of",
    "sweep",
]
