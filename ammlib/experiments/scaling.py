"""What a training step takes on one process and on several that share its batch.

Each number of processes is a torchrun job of its own, one thread a process; wall-clock time, medians, of steps by the
MNIST recipes (batch 100) after some steps of warm-up. Do it on an idle machine.
"""

import json
import os
import subprocess
import sys
import time
from itertools import islice
from statistics import median
from typing import Any

from ammlib.training.device import keep_freed_memory
from ammlib.training.prepare import prepare_data
from ammlib.training.recipes import make_recipe
from ammlib.training.train import Training

Times = dict[str, dict[str, float]]  # milliseconds by net and method


def measure(processes: int = 2, steps: int = 100, warm_up: int = 100) -> dict[str, Any]:
    """Milliseconds of a step by net, method and number of processes."""
    found = {count: job(count, steps, warm_up) for count in (1, processes)}
    nets = {
        arch: {method: [times[arch][method] for times in found.values()] for method in methods}
        for arch, methods in found[1].items()
    }
    return {"processes": list(found), "steps": steps, "warm_up": warm_up, "nets": nets}


def job(processes: int, steps: int, warm_up: int) -> Times:
    """The times of a torchrun job."""
    launcher = f"-m torch.distributed.run --standalone --nproc-per-node {processes}"
    worker = f"-m ammlib scaling --worker --steps {steps} --warm-up {warm_up}"
    done = subprocess.run(
        [sys.executable, *launcher.split(), *worker.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def print_times(steps: int, warm_up: int) -> None:
    """As one of the processes of a job: all times as JSON."""
    keep_freed_memory()
    methods = ("reference", "amm")
    times = {arch: {m: step_milliseconds(arch, m, steps, warm_up) for m in methods} for arch in ("mlp", "lenet")}
    print(json.dumps(times))


def step_milliseconds(arch: str, method: str, steps: int, warm_up: int) -> float:
    """Median time of a step of the present number of processes."""
    recipe = make_recipe("mnist", arch, method, "full")
    training, times = Training(recipe, 0, prepare_data(recipe)), []
    for x, y in islice(training.batches.epoch(0), warm_up + steps):
        started = time.perf_counter()
        training.take_step(x, y)
        times.append(time.perf_counter() - started)
    return 1e3 * median(times[warm_up:])
