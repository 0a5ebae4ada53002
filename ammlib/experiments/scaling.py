"""What a training step takes on one process and on two that share its batch.

Each is a torchrun job of its own, one thread a process; wall-clock time, medians, of steps by the full MNIST recipes
(batch 100), after as many steps of warm-up. On a machine that does something else two processes may gain nothing.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import islice
from statistics import median
from typing import Any

from ammlib.training.device import keep_freed_memory
from ammlib.training.distributed import joined
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.train import Training

NETS = ("mlp", "lenet")
METHODS = ("reference", "amm")
PROCESSES = (1, 2)


def measure(archs: Iterable[str] = NETS, repeats: int = 100) -> dict[str, Any]:
    """Milliseconds of a step by net and method, one for each number of processes."""
    nets = {
        arch: {method: [job(count, arch, method, repeats) for count in PROCESSES] for method in METHODS}
        for arch in archs
    }
    return {"processes": PROCESSES, "repeats": repeats, "nets": nets}


def job(processes: int, arch: str, method: str, steps: int) -> float:
    """Milliseconds of a step in a torchrun job of this module."""
    launcher = f"-m torch.distributed.run --standalone --nproc-per-node {processes} -m {__spec__.name}"
    command = [sys.executable, *launcher.split(), arch, method, str(steps)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def step_milliseconds(arch: str, method: str, steps: int) -> float:
    """Median time of a step of the present number of processes."""
    keep_freed_memory()
    recipe = make_recipe("mnist", arch, method, "full")
    training, times = Training(recipe, 0, prepare_data(recipe)), []
    for batch in islice(training.batches.epoch(0), 2 * steps):
        started = time.perf_counter()
        training.take_step(*batch)
        times.append(time.perf_counter() - started)
    return 1e3 * median(times[steps:])


if __name__ == "__main__":  # as one of the processes of a job
    with joined():
        print(step_milliseconds(sys.argv[1], sys.argv[2], int(sys.argv[3])))
