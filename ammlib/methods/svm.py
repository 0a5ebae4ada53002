"""Linear SVMs on top of a net: DLSVM (Tang 2013), and CRN (An et al. 2015), whose hidden layers are contractions."""

import torch
from torch import Tensor, nn

from ammlib.margin.classifier import check_positive
from ammlib.methods.layers import Weighted, apply, apply_transposed, head_of, watched, weighted
from ammlib.methods.losses import squared_hinge
from ammlib.methods.method import Batch, Method, Task, of_batch

DIRECTIONS = 16  # in which CRN follows how far a layer stretches
SLACK = 1.01  # times what is found of a norm, from below, so that no norm passes 1


class DLSVM(Method):
    """The squared hinge loss, one class against the rest, weighted by `C`.

    noise: the deviation of Gaussian noise on the inputs at the first step, from where it falls linearly to 0.
    """

    def __init__(self, C: float = 1.0, noise: float = 0.0) -> None:
        super().__init__()
        check_positive(C=C)
        if noise < 0:
            raise ValueError(f"noise must not be negative, got {noise}")
        self.C, self.noise, self.steps = C, noise, 1

    def begin(self, model: nn.Module, task: Task) -> None:
        self.steps = task.steps

    def disturb(self, batch: Batch) -> Batch:
        if not self.noise:
            return batch
        sigma = self.noise * (1 - batch.step / self.steps)
        noise = of_batch(batch.x, lambda n: torch.randn(n, *batch.x.shape[1:], device=batch.x.device))
        return batch._replace(x=batch.x + sigma * noise.to(batch.x))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = model(batch.x)
        return self.C * squared_hinge(logits, batch.y), logits


class CRN(DLSVM):
    """CRN-style: DLSVM on hidden layers whose spectral norm is kept at 1 or below, so that the margin in the features
    is a lower bound of that in the inputs. How the authors project, their C and schedule could not be had.

    Norms are found by power iteration of some orthonormal directions together, a few iterations a step from where the
    last one ended: the state. That finds them from below: on a few images of the digits 1 % is missed at most, on MNIST
    less than a hundredth of that. A certified margin takes the exact norms.
    """

    def __init__(self, C: float = 1.0, iterations: int = 2) -> None:
        super().__init__(C)
        check_positive(iterations=iterations)
        self.iterations = iterations

    def begin(self, model: nn.Module, task: Task) -> None:
        super().begin(model, task)
        check_contraction(model)
        for i, (layer, shape) in enumerate(input_shapes(model, task.shape)):
            directions = min(DIRECTIONS, torch.Size(shape).numel())
            self.register_buffer(f"v{i}", torch.randn(directions, *shape, device=layer.weight.device).to(layer.weight))
        self.project(model, iterations=100)

    def after_step(self, model: nn.Module) -> None:
        self.project(model, self.iterations)

    @torch.no_grad()
    def project(self, model: nn.Module, iterations: int) -> None:
        """W ← W / max(1, σ(W)) for every hidden layer, with a little to spare."""
        for i, layer in enumerate(weighted(model)[:-1]):
            v = getattr(self, f"v{i}")
            for _ in range(iterations):
                further = apply_transposed(layer, apply(layer, v), v.shape)  # WᵀWv
                v.copy_(torch.linalg.qr(further.flatten(1).T).Q.T.view_as(v))
            sigma = torch.linalg.matrix_norm(apply(layer, v).flatten(1), 2)  # the largest ‖Wu‖ of their span
            layer.weight /= (SLACK * sigma).clamp(min=1.0)


def check_contraction(model: nn.Module) -> None:
    """Reject layers that may stretch what goes through them whatever the spectral norms are."""
    head_of(model)
    for module in model.modules():
        if not isinstance(module, Weighted) and list(module.parameters(recurse=False)):
            raise ValueError(f"crn keeps linear and convolutional layers contractions, not {type(module).__name__}")
        if isinstance(module, nn.MaxPool2d) and module.kernel_size != module.stride:
            raise ValueError("crn needs max pooling without overlap: otherwise it may stretch distances")


def input_shapes(model: nn.Module, shape: tuple[int, ...]) -> list[tuple[Weighted, tuple[int, ...]]]:
    """The hidden layers with a weight, and the shape of what goes into each for a sample of a given shape."""
    hidden = weighted(model)[:-1]
    with torch.no_grad(), watched(*hidden) as seen:
        model(torch.zeros(1, *shape).to(hidden[0].weight))
    return [(layer, tuple(seen[layer][0].shape[1:])) for layer in hidden]


@torch.no_grad()
def spectral_norm(layer: Weighted, shape: tuple[int, ...]) -> float:
    """σ(W) of a layer for inputs of a shape, from all singular values: exact, but for small layers only."""
    identity = torch.eye(torch.Size(shape).numel()).to(layer.weight)
    return float(torch.linalg.matrix_norm(apply(layer, identity.view(-1, *shape)).flatten(1), 2))


@torch.no_grad()
def certified_margins(model: nn.Module, x: Tensor) -> Tensor:
    """A distance (B,) within which no image can change the prediction: min_k (f_ŷ - f_k) / ‖w_ŷ - w_k‖ / Π σ_l."""
    check_contraction(model)
    f, w = model(x), head_of(model).weight
    top = f.argmax(1, keepdim=True)
    distance = (f.gather(1, top) - f) / (w[top] - w).norm(dim=2)  # (B, C); of the prediction itself 0 / 0
    stretch = [spectral_norm(layer, shape) for layer, shape in input_shapes(model, tuple(x.shape[1:]))]
    return distance.nan_to_num(torch.inf).amin(1) / torch.tensor(stretch).prod().to(x)
