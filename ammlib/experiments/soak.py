"""Faults on purpose: real trainings of the digits' MLP are killed, their files damaged, their disk filled, and two
processes train the same runs.

A fault is survived if the training, started again as its message says, ends with the weights and the run file of one
that was left alone, bit for bit but for the times. Kills are SIGKILL at a random moment of each part of a training that
stores a checkpoint after every step. Bits are flipped in checkpoints (three of four) and in trained weights. Full disks
are small file systems in memory, which are larger when the training is started again. The two writers are asked for the
same runs at the same time; a run is lost if its file is not whole, its weights are others, or both have trained it.
"""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ammlib.data.datasets import load_data
from ammlib.data.sources import DataError
from ammlib.training import execute, train
from ammlib.training.checkpoint import CheckpointError
from ammlib.training.execute import run_or_load, trained_weights
from ammlib.training.recipes import Recipe, make_recipe
from ammlib.training.train import Training

PARTS: dict[str, tuple[Any, str]] = {  # of a training, and the function that is it; "start" is all before
    "step": (Training, "take_step"),
    "save": (train, "save_checkpoint"),
    "evaluation": (Training, "end_epoch"),
    "store": (execute, "finish"),
}
KILLS = ("start", "step", "save", "evaluation", "step", "start", "evaluation", "save", "store", "store")  # of one run
TIMES = ("seconds", "wall_seconds", "cpu_seconds")
SMALL, LARGE = (300, 1300), 64_000  # kilobytes: one checkpoint takes 450
Tally = dict[str, int]


def recipe() -> Recipe:
    """Four epochs of five steps."""
    return make_recipe("digits", "mlp", "amm", epochs=4, train_size=500, margin_size=100)


# ---- in a process of its own


def prepare(root: Path) -> None:
    """Store below a folder, a checkpoint after every step."""
    os.environ |= {f"AMMLIB_{name.upper()}": str(root / name) for name in ("results", "checkpoints")}
    torch.set_num_threads(1)
    train.CHECKPOINT_SECONDS = 0.0


def tell(pipe: Connection) -> None:
    """Send a word whenever a part of the training begins."""

    def telling(function: Callable, part: str) -> Callable:
        def told(*args: Any, **options: Any) -> Any:
            pipe.send(part)
            return function(*args, **options)

        return told

    pipe.send("start")
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, telling(getattr(owner, name), part))


def train_run(root: Path, seed: int, pipe: Connection | None = None) -> None:
    prepare(root)
    if pipe is not None:
        tell(pipe)
    run_or_load(recipe(), seed, progress=False)


def use_weights(root: Path, seed: int) -> None:
    """Load the weights of a run, or train them."""
    prepare(root)
    trained_weights(recipe(), seed, progress=False)


def refused(task: Callable[..., None], *args: Any) -> None:
    """Exit with 2 where a file is refused."""
    try:
        task(*args)
    except (CheckpointError, DataError):
        sys.exit(2)


def start(task: Callable[..., None], *args: Any) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=task, args=args)
    process.start()
    return process


def ended(task: Callable[..., None], *args: Any) -> int | None:
    """The exit code of a task in a process of its own."""
    process = start(task, *args)
    process.join()
    return process.exitcode


def outcome(root: Path) -> dict[str, Any] | None:
    """What one run has left, but for its times; None if that is not exactly a run file and its weights."""
    kinds = [list(root.rglob(pattern)) for pattern in ("*.json", "*.safetensors", "*.pt", "*.before", "*.lock")]
    if [len(found) for found in kinds] != [1, 1, 0, 0, 0]:
        return None
    (run,), (weights,), *_ = kinds
    stored = {name: value for name, value in json.loads(run.read_text("utf-8")).items() if name not in TIMES}
    return stored | {"file": hashlib.sha256(weights.read_bytes()).hexdigest()}


@cache
def left_alone(seed: int) -> dict[str, Any] | None:
    """The outcome of a run that nothing happens to."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        ended(train_run, Path(folder), seed)
        return outcome(Path(folder))


# ---- faults


def killed(root: Path, seed: int, rng: random.Random, parts: Iterable[str] = KILLS) -> bool:
    """Kill one run in each of these parts, one after the other; does it end like the one left alone?"""
    for part in parts:
        while not kill_in(part, root, seed, rng):
            shutil.rmtree(root)  # it has come to its end: once more from the beginning
    ended(train_run, root, seed)
    return outcome(root) == left_alone(seed) is not None


def kill_in(part: str, root: Path, seed: int, rng: random.Random) -> bool:
    """Start or go on with a run and kill it at a random moment after a part has begun; was it still alive?"""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = start(train_run, root, seed, theirs)
    theirs.close()
    try:
        for _ in range(rng.randint(1, 3) if part in ("step", "save") else 1):
            while ours.recv() != part:
                pass
        time.sleep(rng.uniform(0, 0.1 if part == "start" else 0.03))
    except EOFError:  # it came to its end before
        process.join()
    process.kill()
    process.join()
    if process.exitcode not in (0, -9):
        raise RuntimeError(f"a training ended with {process.exitcode} of itself")  # each further one would too
    return process.exitcode == -9


def flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def flipped(root: Path, seed: int, rng: random.Random, kind: str) -> tuple[bool, bool]:
    """Flip a bit of the last checkpoint ("*.pt") or of the weights; is it noticed, and is the end as if it were not?"""
    task: Callable[..., None]
    if kind == "*.pt":
        while not any(root.rglob(kind)) or any(root.rglob("*.json")):  # it may have come to its end before
            shutil.rmtree(root, ignore_errors=True)
            kill_in("evaluation", root, seed, rng)  # when there are two checkpoints at least
        task = train_run
    else:
        ended(train_run, root, seed)
        task = use_weights
    (path,) = root.rglob(kind)
    flip_bit(path, rng)
    noticed = ended(refused, task, root, seed) == 2
    if noticed:
        path.unlink()
        ended(task, root, seed)
    return noticed, outcome(root) == left_alone(seed) is not None


def full_disks(folder: str, disks: int) -> None:
    """Print how many trainings on a full disk stopped with an error that says so, and how many then ended rightly.

    To be called where file systems may be mounted: `unshare --map-root-user --mount`.
    """
    rng, full, survived = random.Random(2), 0, 0
    for seed in range(disks):
        small = Path(folder) / str(seed)
        small.mkdir()
        size = f"size={rng.randint(*SMALL)}k"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", small], check=True)
        try:
            train_run(small, seed)
        except OSError as error:
            full += error.errno == 28 and str(small) in str(error)  # no space left on device
        subprocess.run(["mount", "-o", f"remount,size={LARGE}k", small], check=True)
        train_run(small, seed)
        found = outcome(small)
        subprocess.run(["umount", small], check=True)
        survived += found == left_alone(seed) is not None
    print(json.dumps({"tried": full, "survived": min(full, survived), "lost": full - min(full, survived)}))


def write_until(root: Path, until: float, pipe: Connection) -> None:
    """Ask for one run after the other until the time is over; tell which ones were trained here."""
    prepare(root)
    here = []

    def counted(used: Recipe, seed: int, **options: Any) -> Training:
        here.append(seed)
        return train.train(used, seed, **options)

    with patch.object(execute, "train", counted):
        for seed in count():
            if time.monotonic() > until:
                break
            run_or_load(recipe().with_(epochs=1), seed, progress=False)
    pipe.send(here)


def two_writers(root: Path, seconds: float) -> Tally:
    """Runs that two processes, asked for the same ones, have stored; and how often a file was read meanwhile."""
    until, reads, torn = time.monotonic() + seconds, 0, 0
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    writers = [start(write_until, root, until, theirs) for _, theirs in pipes]
    while any(writer.is_alive() for writer in writers):
        for path in root.rglob("*.json"):
            reads += 1
            try:
                json.loads(path.read_text("utf-8"))
            except ValueError:
                torn += 1
        time.sleep(1.0)
    if any(writer.exitcode for writer in writers):
        raise RuntimeError("a writer failed")  # and tells nothing
    trained = [seed for ours, _ in pipes for seed in ours.recv()]
    stored = [json.loads(path.read_text("utf-8")) for path in root.rglob("*.json")]
    whole = len(stored) == len(list(root.rglob("*.safetensors"))) == len(set(trained))
    survived = len(set(trained)) if whole else 0
    lost = len(trained) - survived + torn  # what was trained twice is lost too
    return {"tried": len(trained), "survived": survived, "lost": lost, "files read": reads}


# ---- all of them


def tally(outcomes: Iterable[bool], each: int = 1) -> Tally:
    found = list(outcomes)
    return {"tried": each * len(found), "survived": each * sum(found), "lost": each * (len(found) - sum(found))}


def measure(archs: Iterable[str] = ("mlp",), repeats: int = 20) -> dict[str, Any]:
    """Ten kills, two flips and half a minute of two writers for each repeat, and half a full disk."""
    rng = random.Random(1)
    load_data("digits"), import_module("torch._dynamo")  # so that no process has to import what these need
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        places = (Path(folder) / str(number) for number in count())

        def say(name: str, found: Tally) -> Tally:
            print(name, found, flush=True)
            for path in Path(folder).iterdir():
                shutil.rmtree(path)
            return found

        kills = [killed(next(places), seed, rng) for seed in range(repeats)]
        faults = {"kills": say("kills", tally(kills, len(KILLS)))}
        kinds = [("*.safetensors" if number % 4 == 3 else "*.pt") for number in range(2 * repeats)]
        flips = [flipped(next(places), number % repeats, rng, kind) for number, kind in enumerate(kinds)]
        noticed = {"noticed": sum(flip for flip, _ in flips)}
        faults["bit flips"] = say("bit flips", tally(survived for _, survived in flips) | noticed)
        faults["full disks"] = say("full disks", on_small_disks(folder, repeats // 2))
        faults["two writers"] = say("two writers", two_writers(next(places), 30.0 * repeats))
    return {"nets": {arch: {"dataset": "digits", "seconds": 30 * repeats, "faults": faults} for arch in archs}}


def on_small_disks(folder: str, disks: int) -> Tally:
    call = f"from ammlib.experiments.soak import full_disks; full_disks({folder!r}, {disks})"
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", call]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def table(measured: dict[str, Any]) -> str:
    """Faults tried, survived and lost, as Markdown."""
    lines = ["| fault | tried | survived | lost |", "| --- | --- | --- | --- |"]
    for fault, found in next(iter(measured["nets"].values()))["faults"].items():
        lines.append(f"| {fault} | {found['tried']} | {found['survived']} | {found['lost']} |")
    return "\n".join(lines)
