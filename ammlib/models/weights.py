"""Weights as files, and the digest that tells them apart."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ammlib.data.files import tensors_digest, write_atomically
from ammlib.data.sources import DataError


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Store the weights of a trained model as safetensors."""
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    write_atomically(path, lambda file: file.write(data))


def load_weights(path: Path, digest: str | None = None) -> dict[str, Tensor]:
    """The weights of a trained model, on the CPU; an error if they are damaged or, with a `digest`, others."""
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it, and it is trained or fetched anew") from error
    if digest not in (None, weights_digest(weights)):
        raise DataError(f"{path} does not hold the weights of its run; delete it to train them anew")
    return weights


def weights_digest(weights: dict[str, Tensor]) -> str:
    """SHA-256 of all weights: equal for bit-identical models."""
    return tensors_digest(weights)
