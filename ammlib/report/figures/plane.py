"""Points of the plane and the boundaries of classifiers between them."""

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from ammlib.report.style import CLASSES


def boundary(axes: Axes, model: nn.Module, x: Tensor, y: Tensor, title: str = "") -> None:
    """Points of the plane, the two sides that a binary classifier tells apart, and its boundary in red."""
    h, v, f = boundary_line(axes, model, x, linewidths=1.5)
    axes.contourf(h, v, f, levels=[-np.inf, 0, np.inf], colors=CLASSES, alpha=0.12)
    for label_, colour in enumerate(CLASSES):
        axes.scatter(*x.flatten(1)[y == label_].T, s=3, color=colour, linewidths=0)
    axes.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
    axes.grid(False)


def boundary_line(axes: Axes, model: nn.Module, x: Tensor, linewidths: float = 0.8) -> tuple[np.ndarray, ...]:
    """The boundary of a binary classifier in red around the points x; gives the grid and f on it."""
    points = x.flatten(1)
    (left, low), (right, high) = points.amin(0).tolist(), points.amax(0).tolist()
    h, v = np.linspace(left - 1.5, right + 1.5, 301), np.linspace(low - 0.5, high + 0.5, 301)
    grid = torch.from_numpy(np.stack(np.meshgrid(h, v), -1)).float().view(-1, *x.shape[1:])
    with torch.no_grad():
        f = model(grid.to(next(model.parameters()).device)).view(len(v), len(h)).cpu().numpy()
    axes.contour(h, v, f, levels=[0], colors="red", linewidths=linewidths)
    return h, v, f
