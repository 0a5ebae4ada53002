"""The state of a training, to resume from."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ammlib.data.files import read_checked, write_checked


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from."""


def before(path: Path) -> Path:
    """Where the checkpoint before the last one is: what to go back to if the last is damaged."""
    return path.with_name(f"{path.name}.before")


def save_checkpoint(path: Path, identity: dict, state: dict[str, Any]) -> None:
    """Store the state of a training with what it belongs to: recipe, seed and data."""
    content = io.BytesIO()
    torch.save({"identity": identity, "state": state}, content)
    write_checked(path, content.getvalue(), keep=before(path))


def load_checkpoint(path: Path, identity: dict) -> dict[str, Any] | None:
    """The last state stored for this recipe, seed and data; None if there is none, an error if it is damaged or of
    another run."""
    path = path if path.exists() else before(path)
    if not path.exists():
        return None
    with usable(path):
        stored = load_content(path)
        found, state = {"data": identity.get("data"), **stored["identity"]}, stored["state"]  # data: not in old ones
    different = sorted(key for key in {*found, *identity} if found.get(key) != identity.get(key))
    if different:
        raise CheckpointError(f"{path} belongs to another run: different {', '.join(different)}; move it away")
    return state


def weights_in(path: Path) -> dict[str, Tensor] | None:
    """Those of the last checkpoint; None if there is none, or it is damaged."""
    try:
        weights: dict[str, Tensor] = load_content(path)["state"]["model"]
    except Exception:  # damaged bytes fail in many ways
        return None
    return weights


def load_content(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(io.BytesIO(read_checked(path)), map_location="cpu", weights_only=True)
    return content


def remove_checkpoint(path: Path) -> None:
    """The last one last, so that after a kill in between it still tells how far the training has come."""
    for found in (before(path), path):
        found.unlink(missing_ok=True)


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Whatever is wrong with the content of a checkpoint is one error that says what to do."""
    try:
        yield
    except Exception as error:  # damaged bytes fail in many ways
        reason = " ".join(str(error).split())
        back = before(path)
        advice = f"go on from the one before, {back.name}" if back.exists() else "start anew"
        raise CheckpointError(f"{path} is damaged ({reason}); delete it to {advice}") from error
