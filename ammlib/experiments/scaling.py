"""`python -m ammlib.scaling`: what a training step takes on one process and on several that share its batch.

Each number of processes is a torchrun job of its own, one thread a process; wall-clock time, medians, of steps by the
MNIST recipes (batch 100) after some steps of warm-up. Do it on an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from itertools import islice, product
from statistics import median

from ammlib.device import keep_freed_memory
from ammlib.distributed import joined
from ammlib.prepare import prepare_data
from ammlib.recipes import make_recipe
from ammlib.train import Training

ARCHS, METHODS = ("mlp", "lenet"), ("reference", "amm")


def step_milliseconds(arch: str, method: str, steps: int, warm_up: int) -> float:
    """Median time of a step of the present number of processes."""
    recipe = make_recipe("mnist", arch, method, "full")
    training, times = Training(recipe, 0, prepare_data(recipe)), []
    for x, y in islice(training.batches.epoch(0), warm_up + steps):
        started = time.perf_counter()
        training.take_step(x, y)
        times.append(time.perf_counter() - started)
    return 1e3 * median(times[warm_up:])


def measure(steps: int, warm_up: int) -> None:
    """As one of the processes of a job: print all times as JSON."""
    keep_freed_memory()
    with joined():
        print(json.dumps({f"{a} {m}": step_milliseconds(a, m, steps, warm_up) for a, m in product(ARCHS, METHODS)}))


def job(processes: int, options: list[str]) -> dict[str, float]:
    """The times of a torchrun job."""
    words = f"-m torch.distributed.run --standalone --nproc-per-node {processes} -m ammlib.scaling --worker"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *words.split(), *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ammlib.scaling", description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="to compare with one (default 2)")
    parser.add_argument("--steps", type=int, default=100, help="measured (default 100)")
    parser.add_argument("--warm-up", type=int, default=100, help="steps before (default 100)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return measure(args.steps, args.warm_up)
    options = ["--steps", str(args.steps), "--warm-up", str(args.warm_up)]
    one, several = (job(processes, options) for processes in (1, args.processes))
    print(f"| step | one process | {args.processes} processes | speed-up |\n| --- | --- | --- | --- |")
    for name in one:
        print(f"| {name} | {one[name]:.1f} ms | {several[name]:.1f} ms | {one[name] / several[name]:.2f}x |")


if __name__ == "__main__":
    main()
