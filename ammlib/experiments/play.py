"""Pictures to play with: in a live kernel sliders draw them anew, elsewhere the first one stands."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import matplotlib.pyplot as plt
import torch
from IPython.display import display
from ipywidgets import Dropdown, FloatLogSlider, HBox, IntSlider, Layout, SelectionSlider, ValueWidget
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import pad

from ammlib.experiments import linear, linear_figures, toy
from ammlib.experiments.cost.attacks import published_net
from ammlib.experiments.cost.nets import Images
from ammlib.margin.amm import AMM
from ammlib.margin.parts import AGGREGATION, SHRINKAGE
from ammlib.margin.pgd import pgd
from ammlib.report.figures import boundary, pushed, show
from ammlib.report.measurements import Measured
from ammlib.report.style import legend_below
from ammlib.training.recipes import label

WIDE = Layout(width="500px")  # of a slider with many places


def live(draw: Callable[..., Figure], **controls: ValueWidget) -> None:
    """Show the controls and what `draw` makes of their values; each change draws into the same place."""
    for name, control in controls.items():
        control.description, control.continuous_update = control.description or name, False
    box = HBox(list(controls.values()), layout=Layout(flex_flow="row wrap"))
    display({**box._repr_mimebundle_(), "text/plain": "(controls, when this cell is run in a live kernel)"}, raw=True)

    def picture() -> Figure:
        figure = draw(**{name: control.value for name, control in controls.items()})
        plt.close(figure)  # shown here, not at the end of the cell once more
        return figure

    place = display(picture(), display_id=True)
    for control in controls.values():
        control.observe(lambda _: place.update(picture()), "value")


def attack(models: Mapping[str, nn.Module], x: Tensor, y: Tensor, names: Sequence[str] | None = None) -> None:
    """Pick one of the images: what DeepFool adds to it, how far it goes, and what the nets say on the way."""
    slider = IntSlider(max=len(x) - 1, layout=WIDE)
    live(lambda image: pushed(models, x[image], names, int(y[image])), image=slider)


def outlier(x: Tensor, y: Tensor, svm: nn.Linear, farthest: int) -> None:
    """Move the deepest sample of the positive class along the SVM's boundary: AVG+LIN turns, MIN+LIN does not."""

    @lru_cache
    def boundaries(distance: int) -> list[tuple[str, nn.Linear]]:
        moved, _ = linear.move_deepest(x, y, svm, distance)
        averaged = linear.affine(linear.closed_form(moved, y), 0)
        nearest = linear.train_linear(AMM("min", "lin", lam=1), moved, y, svm, steps=40, rate=1 / farthest)
        return [("avg_lin", averaged), ("min_lin", nearest)]

    def draw(distance: int) -> Figure:
        figure, axes = plt.subplots(figsize=(4.6, 4.8))
        found, moved = boundaries(distance), linear.move_deepest(x, y, svm, distance)[0]
        title = ", ".join(f"{label(method)} {linear.angle(model, svm):.0f}° from the SVM" for method, model in found)
        linear_figures.boundaries(axes, moved, y, [("svm", svm), *found], title, before=x)
        return legend_below(figure, columns=3)

    live(draw, distance=IntSlider(farthest, 0, farthest, 5, description="moved by", layout=WIDE))


def toy_boundary(test: tuple[Tensor, Tensor]) -> None:
    """Train the toy's linear classifier for some steps with a regulariser of one's own, and see its boundary."""
    train = lru_cache(toy.train_briefly)

    def draw(aggregation: str, shrinkage: str, lam: float, c: float, d: float, seed: int) -> Figure:
        figure, axes = plt.subplots(figsize=(3.4, 3.8))
        model = train(aggregation, shrinkage, lam, c, d, seed)
        found = toy.achieved(model)
        title = (
            f"{aggregation}+{shrinkage}".upper() + f": {found['accuracy']:.0f} % right, margin {found['margin']:.2f}"
        )
        boundary(axes, model, *test, title)
        return figure

    slope = {"base": 2, "min": -3, "max": 3, "step": 0.5}
    live(
        draw,
        aggregation=Dropdown(options=list(AGGREGATION), value="min"),
        shrinkage=Dropdown(options=list(SHRINKAGE), value="exp"),
        lam=FloatLogSlider(1, description="λ", **slope),
        c=FloatLogSlider(1, **slope),
        d=FloatLogSlider(1, **slope),
        seed=IntSlider(max=9),
    )


def radius(measured: Measured, arch: str = "mlp", shown: int = 8) -> None:
    """Let PGD go so far: what it makes of some images, net by net, and the share of all images that stand."""
    images, found = Images("mnist"), measured["nets"][arch]["methods"]
    x, y = images.test(shown).cpu(), images.data.y_test[:shown]
    nets = {method: published_net(arch, method).cpu() for method in found}

    @lru_cache
    def draw(radius: float) -> Figure:
        figure, panels = plt.subplots(1 + len(nets), figsize=(8.6, 1.1 + 0.95 * len(nets)))
        row_of_images(panels[0], x, "images", y, y)
        for axes, (method, net) in zip(panels[1:], nets.items(), strict=True):
            there = pgd(net, x, y, radius)
            stand = found[method]["robust"][measured["radii"].index(radius)]
            name = f"{label(method)}\n{stand:.0%} of {measured['samples']:,} stand"
            row_of_images(axes, there, name, net(there).argmax(1), y)
        figure.suptitle(f"PGD within {radius:g} pixel units, and predictions; red: wrong", fontsize="medium")
        return figure

    live(draw, radius=SelectionSlider(options=measured["radii"], value=1.0))


def row_of_images(axes: Axes, images: Tensor, name: str, said: Tensor, true: Tensor) -> None:
    """Images side by side with the predictions above them, red where they are wrong."""
    spaced = pad(images, (2, 2, 0, 0), value=1.0)
    show(axes, torch.cat([*spaced], -1))
    for i, (a, b) in enumerate(zip(said.tolist(), true.tolist(), strict=True)):
        place = {"transform": axes.transAxes, "ha": "center", "va": "bottom"}
        axes.text((i + 0.5) / len(images), 1.02, str(a), color="black" if a == b else "red", **place)
    axes.set_ylabel(name, rotation=0, ha="right", va="center")
