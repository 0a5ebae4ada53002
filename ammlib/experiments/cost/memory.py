"""Peak memory of a training step, beyond what weights and momentum hold, in a fresh process for each.

On a CPU it is the growth of the peak resident size over what is resident after a step on two images, which loads all
code; freed memory is handed back to the system first. On a GPU it is what PyTorch allocates at the peak.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ammlib.experiments.cost.nets import Case, Net
from ammlib.training.device import return_freed_memory

Variant = tuple[str, int] | None  # name and iterations of the attack; None: plain cross-entropy


def peaks(net: Net, x: Tensor, y: Tensor, variants: Iterable[Variant]) -> dict[Variant, float]:
    """Megabytes of a step of each variant on the same batch."""
    context = get_context("forkserver")  # its children are fresh, and yet need not import everything anew
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # which PyTorch's optimisers import when first used
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.pt"
        torch.save({"case": asdict(net.case), "model": net.model.state_dict(), "x": x, "y": y}, file)
        with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
            jobs = [(variant, pool.submit(peak, file, variant)) for variant in variants]
            shown = tqdm(jobs, f"memory of {net.case.arch}", leave=False)
            return {variant: job.result() for variant, job in shown}


def peak(file: Path, variant: Variant) -> float:
    """Megabytes that one step takes at its peak; to be called once in a process."""
    torch.set_num_threads(1)
    return_freed_memory()
    stored = torch.load(file, weights_only=True)
    net = Net(Case(**stored["case"]))
    net.model.load_state_dict(stored["model"])
    net.freeze()
    x, y = stored["x"].to(net.device), stored["y"].to(net.device)
    amm = None if variant is None else net.regulariser(variant[0], steps=variant[1])
    with warnings.catch_warnings(action="ignore"):  # that of so few samples none was fooled
        net.step(x[:2], y[:2], amm)
    net.optimizer.zero_grad()
    if net.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        net.step(x, y, amm)
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    return_freed_memory()
    before = resident()
    net.step(x, y, amm)
    return max(peak_resident() - before, 0) / 1e6


def resident() -> int:
    """Bytes that are resident now; where the system does not tell, the most that ever were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_resident()


def peak_resident() -> int:
    """Bytes; Linux counts in kB, macOS in bytes."""
    import resource  # here because Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
