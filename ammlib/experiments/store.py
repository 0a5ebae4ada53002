"""Measurements into files: one JSON for each part, with the machine, the versions and the method."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ammlib.data.files import write_atomically
from ammlib.experiments.cost.nets import CASES
from ammlib.report.measurements import path_of

PACKAGES = ("torch", "foolbox", "adv-lib")
DIGITS = 5  # significant, of what is stored


def machine() -> str:
    """The model and number of cores of the CPU, and the GPU if there is one; nothing that names the machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}, {os.cpu_count()} cores{gpu}"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def rounded(value: Any) -> Any:
    """The same values with numbers of a few digits, so that files stay readable."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def one_a_line(values: dict[str, str]) -> str:
    """A JSON object of values that are JSON already, as a file that is short and yet shows what changed."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {value}" for name, value in values.items()) + "\n}"


def store(part: str, values: dict[str, Any], method: str, folder: Path | None = None) -> Path:
    """Write what was measured, whole or not at all; `method` says how.

    Nets that were measured before in the same way on the same machine stay in the file. A package that is missing now,
    such as one to compare with, is no other version.
    """
    path = path_of(part, folder)
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    about = {
        "machine": machine(),
        "versions": known.get("versions", {}) | versions(),
        "method": " ".join(method.split()),
    }
    fixed = about | rounded({name: value for name, value in values.items() if name != "nets"})
    nets = known.pop("nets", {})
    nets = (nets if known == fixed else {}) | rounded(values["nets"])
    nets = {name: json.dumps(nets[name], allow_nan=False) for name in CASES if name in nets}
    text = one_a_line({**{name: json.dumps(value) for name, value in fixed.items()}, "nets": one_a_line(nets)})
    write_atomically(path, lambda file: file.write(f"{text}\n".encode()))
    return path
