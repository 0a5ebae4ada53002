"""Where files belong, how they are written whole or not at all, and how they are known to be as they were written."""

import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from torch import Tensor

try:
    import fcntl
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]  # which stands for a module that is not there

SEAL = b"\nsha256:"  # then 32 bytes, at the end of a file that is checked
TEMPORARY = ".tmp"
OLD = 3600.0  # seconds, after which nobody writes to a temporary file any more
SHIPPED = Path(__file__).resolve().parents[1] / "stored"  # what an installed package brings along of results/


def home() -> Path:
    """The checkout this package runs from, or the folder where Python was started."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").exists() else Path.cwd()


def stored_results() -> Path:
    """The results that come with the package: those of the checkout or, where it is installed, beside the code."""
    return SHIPPED if SHIPPED.exists() else home() / "results"


# ---- writing


def write_atomically(path: Path, write: Callable[[BinaryIO], object], keep: Path | None = None) -> None:
    """Let `write` fill a temporary file beside `path` and put it in place; a crash leaves the old file untouched.

    What was in place before goes to `keep`, if that is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=TEMPORARY)
    try:
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # temporary files are private, results are shared
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):  # such as a full disk, of which the system does not say whose file it hit
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders of processes that were killed."""
    for path in folder.glob(f".*{TEMPORARY}"):
        with suppress(OSError):  # another process may have done it
            if time.time() - path.stat().st_mtime > OLD:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def require_writable(folder: Path) -> None:
    """Raise if no file can be written to a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"one byte is enough")


# ---- checking


def write_checked(path: Path, content: bytes, keep: Path | None = None) -> None:
    """Write bytes, and after them their SHA-256."""
    seal = SEAL + hashlib.sha256(content).digest()
    write_atomically(path, lambda file: file.write(content + seal), keep)


def read_checked(path: Path) -> bytes:
    """The bytes that were written; ValueError if they are others. Files of earlier versions have no sum to check."""
    stored = path.read_bytes()
    content, seal = stored[: -len(SEAL) - 32], stored[-len(SEAL) - 32 :]
    if not seal.startswith(SEAL):
        return stored
    if hashlib.sha256(content).digest() != seal[len(SEAL) :]:
        raise ValueError("its content does not have the SHA-256 that was stored with it")
    return content


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors and their names: equal for bit-identical ones."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


# ---- one process at a time


@contextmanager
def locked(path: Path, busy: Callable[[str], object]) -> Iterator[None]:
    """Hold the lock file at `path`; while another process does, tell `busy` which one, then wait.

    The system holds the lock for the process, so that a crash leaves none behind.
    """
    while True:
        file = path.open("a+")
        try:
            _lock(file, busy)
        except BaseException:  # such as that of a `busy` that does not want to wait
            file.close()
            raise
        with suppress(FileNotFoundError):  # whoever held it before has removed the file
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()
    with file:
        try:
            file.truncate(0)
            print(os.getpid(), "on", platform.node(), end="", file=file, flush=True)
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(file: TextIO, busy: Callable[[str], object]) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        busy(file.read())
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system that has no locks
        return
