"""Weights as files, and the digest that tells them apart."""

import hashlib
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

from ammlib.data.files import write_atomically


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Store the weights of a trained model as safetensors."""
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    write_atomically(path, lambda file: file.write(data))


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a trained model, on the CPU."""
    return load_file(path)


def weights_digest(weights: dict[str, Tensor]) -> str:
    """SHA-256 of all weights: equal for bit-identical models."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
