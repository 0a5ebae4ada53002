"""The state of a training, to resume from."""

from pathlib import Path
from typing import Any

import torch

from ammlib.data.files import write_atomically


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be resumed from."""


def save_checkpoint(path: Path, identity: dict, state: dict[str, Any]) -> None:
    """Store the state of a training and the recipe and seed that it belongs to."""
    write_atomically(path, lambda file: torch.save({"identity": identity, "state": state}, file))


def load_checkpoint(path: Path, identity: dict) -> dict[str, Any] | None:
    """The state stored for this recipe and seed; None if there is none, an error if it is damaged or another's."""
    if not path.exists():
        return None
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        found, state = stored["identity"], stored["state"]
    except Exception as error:  # damaged bytes fail in many ways
        raise CheckpointError(f"{path} is damaged ({error}); delete it to start anew") from error
    if found != identity:
        different = sorted(key for key in {*found, *identity} if found.get(key) != identity.get(key))
        raise CheckpointError(f"{path} belongs to another run: different {', '.join(different)}; move it away")
    return state
