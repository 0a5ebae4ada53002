"""How the library looks at a classifier: its logits, its undisturbed state, and what it may be given."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ammlib.margin.processes import world

T = TypeVar("T")


# ---- logits


def class_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Logits (B, C) of any classifier, single-logit ones included, in the precision of x."""
    try:
        return as_classes(model(x), len(x)).to(x.dtype)
    except RuntimeError as error:
        like = parameters_like(model)
        if like is None or like.dtype == x.dtype:
            raise
        raise TypeError(f"x is {x.dtype}, the model's weights are {like.dtype}: convert one of them") from error


def as_classes(output: Any, samples: int | None = None) -> Tensor:
    """Logits as (B, C): a single logit f, whose sign is the prediction, becomes the two logits (0, f)."""
    f = output["logits"] if isinstance(output, Mapping) and "logits" in output else getattr(output, "logits", output)
    if not isinstance(f, Tensor):
        raise TypeError(f"a classifier gives a tensor of logits, or an output with `.logits`; got {type(f).__name__}")
    if not f.is_floating_point():
        raise TypeError(f"logits must be floating-point, got {f.dtype}; predicted classes have no margin")
    if f.ndim < 2:  # a logit a sample; or a net squeezes its output, and with it a batch of one
        f = f.reshape(1, -1) if samples == 1 else f.unsqueeze(-1)
    return torch.cat([torch.zeros_like(f), f], 1) if f.shape[1:] == (1,) else f


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that the attack calls as often as it likes: the one in DistributedDataParallel or torch.compile."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if inner is None:
            return model
        model = inner


# ---- an undisturbed model


@contextmanager
def frozen(model: nn.Module, x: Tensor) -> Iterator[nn.Module]:
    """The model, unwrapped, in eval mode and full precision; afterwards flags and random state are as before."""
    training = [module for module in modules_of(model) if module.training]
    for module in training:
        module.training = False
    try:
        with random_state_kept(x.device), torch.autocast(x.device.type, enabled=False), eager():
            yield unwrapped(model)
    finally:
        for module in training:
            module.training = True


def eager() -> AbstractContextManager[Any]:
    """Compiled parts of a model run as they were written: their backward pass serves once and cannot be derived."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def random_state_kept(device: torch.device) -> AbstractContextManager[Any]:
    """Whatever is drawn inside, the random state afterwards is as before, on the CPU and on the given device."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def differs_in_eval_mode(model: nn.Module) -> bool:
    """Does the model, in its present mode, give other logits than in eval mode (batch norm, dropout)?

    Seen by its modules; one that asks for `self.training` in its own `forward` is not.
    """
    changing = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
    training = [module for module in modules_of(model) if module.training]
    rates = (getattr(module, "dropout", 0.0) for module in training)  # of recurrent nets, ...
    dropped = any(rate for rate in rates if isinstance(rate, float))
    return dropped or any(isinstance(module, changing) for module in training)


def parameters_like(model: nn.Module) -> Tensor | None:
    """A parameter, for the device and precision that a model works with; None if it has none."""
    return next((p for module in modules_of(model) for p in module.parameters() if p.is_floating_point()), None)


def modules_of(model: nn.Module) -> list[nn.Module]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"a classifier is an nn.Module, got a {type(model).__name__}; a function can be put into one")
    return list(model.modules())


# ---- what it may be given


def as_tensor(values: Any, like: Tensor | None = None) -> Any:
    """Tensors, or numpy arrays in the precision of `like`, on its device; None stays None."""
    if values is None:
        return None
    given = isinstance(values, Tensor)  # the rest is copied: some arrays may not be written to, pandas' have to ask
    tensor = values if given else torch.tensor(values.__array__().copy() if hasattr(values, "__array__") else values)
    if like is None:
        return tensor
    convert = not given and tensor.is_floating_point()  # numpy's floats are double unless told otherwise
    return tensor.to(like.device, like.dtype if convert else None)


def check_images(x: Tensor) -> None:
    """Reject an empty batch, what holds no real numbers, and a mode without gradients."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError("the attack needs gradients, which torch.inference_mode() forbids; torch.no_grad() is fine")
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.is_meta or x.layout != torch.strided:
        raise TypeError(f"x must be a dense tensor with values, got {x.layout} on device {x.device}")
    if not x.is_floating_point():
        hints = dict.fromkeys((torch.int64, torch.int32), "; tokens have no margin, embeddings do")
        hints[torch.uint8] = "; scale uint8 images to [0, 1] first"
        raise TypeError(f"x must be a floating-point tensor, got {x.dtype}{hints.get(x.dtype, '')}")
    if x.ndim < 2:
        raise ValueError(f"x must be a batch of samples, (B, ...), got shape {tuple(x.shape)}")
    if len(x) == 0 and world() == 1:  # of several processes, some may have no share of the last batch
        raise ValueError("x is an empty batch")


@overload
def check_values(x: Tensor, f: Tensor, y: Tensor) -> Tensor: ...
@overload
def check_values(x: Tensor, f: Tensor, y: Tensor | None) -> Tensor | None: ...
def check_values(x: Tensor, f: Tensor, y: Tensor | None) -> Tensor | None:
    """The labels as int64 (B,), after rejecting what would give meaningless margins: NaN, values out of range.

    All values are looked at together, since on a GPU every look waits for all that came before: a sum is not finite if
    one of its terms is not.
    """
    seen = [x.sum(dtype=torch.float32), f.sum(dtype=torch.float32)]  # some GPUs know no double precision
    y = None if y is None else as_labels(y, *f.shape)
    if y is not None and len(y):
        seen += [bound.float() for bound in y.aminmax()]
    x_sum, f_sum, *bounds = torch.stack(seen).tolist()
    if not math.isfinite(x_sum) and not x.isfinite().all():
        raise ValueError("x contains NaN or infinite values")
    if not math.isfinite(f_sum) and not f.isfinite().all():
        raise ValueError("logits contains NaN or infinite values")
    check_range(bounds, f.shape[1])
    return y


def check_range(bounds: Sequence[float], classes: int) -> None:
    """Reject labels, the lowest and the highest of which are given, if there are any, that name no class."""
    if bounds and not 0 <= bounds[0] <= bounds[1] < classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}, got {bounds[0]:.0f}..{bounds[1]:.0f}")


def as_labels(y: Tensor, samples: int, classes: int = 2) -> Tensor:
    """Class indices of any integer type, or for two classes 0. and 1., of shape (B,) or (B, 1), as int64 (B,)."""
    if not isinstance(y, Tensor):
        raise TypeError(f"labels must be a tensor, got {type(y).__name__}")
    y = y.squeeze(1) if y.shape == (samples, 1) else y
    if y.shape != (samples,):
        raise ValueError(f"labels must have shape ({samples},), got {tuple(y.shape)}")
    if y.is_floating_point() and (classes > 2 or not torch.equal(y, y.round())):
        raise TypeError(f"labels must be int64 class indices, got {y.dtype}")
    return y.long()


def check_attack(steps: int, overshoot: float, num_rivals: int) -> None:
    """Reject options with which the attack could not move."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if num_rivals < 2:
        raise ValueError(f"num_rivals counts the predicted class too: it must be at least 2, got {num_rivals}")
    if not 0 <= overshoot <= 1:
        raise ValueError(f"overshoot must lie in 0 ... 1, got {overshoot}")


def check_positive(**values: float) -> None:
    """Each named value must be greater than zero, and of a size that can be reckoned with."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
        if not 1e-9 <= value <= 1e9:
            raise ValueError(f"{name} must lie in 1e-9 ... 1e9, got {value}")


def choose(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """The entry called `name`, or an error that lists the names there are."""
    if name not in choices:
        raise ValueError(f"unknown {kind} {name!r}; choose from {', '.join(choices)}")
    return choices[name]


def are_probabilities(f: Tensor) -> bool:
    return bool(((f >= 0) & (f <= 1)).all())


def why_not_fooled(f: Tensor) -> str:
    """What probably keeps the attack from changing a single prediction, by the logits (B, C) of a batch."""
    constant = len(f) > 1 and (f == f[:1]).all()
    if are_probabilities(f) and (not constant or f.sum(1).allclose(f.new_ones(()), atol=1e-3)):  # or saturated ones
        return "the outputs look like probabilities: leave out the final softmax or sigmoid, the attack needs logits"
    if constant:
        return "the logits are the same for all samples: the net seems dead"
    return "its gradients may vanish or be cut off (`detach`, `no_grad`), or it may need more `steps`"
