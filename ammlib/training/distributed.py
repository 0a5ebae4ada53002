"""One training on several processes, as torchrun starts them; with one process everything here does nothing."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ammlib.margin.processes import is_main, world

T = TypeVar("T")
GO_ON = "the same command, without --force, goes on from the last checkpoint"


class DistributedError(RuntimeError):
    """The processes of a job cannot go on together."""


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes of this torchrun job, if it is one; only the main process prints."""
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        yield
        return
    cuda = torch.cuda.is_available()
    if cuda:
        here, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if here > gpus:
            raise DistributedError(f"{here} processes need as many GPUs, this machine has {gpus}; see --nproc-per-node")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(sys.stdout if is_main() else nowhere):
            yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise DistributedError("another process of this job has ended; " + GO_ON) from error
        raise
    dist.destroy_process_group()  # not after an error: the others may no longer answer


def wrapped(model: nn.Module) -> nn.Module:
    """The model as a loss has to call it so that gradients are averaged over the processes."""
    if world() == 1:
        return model
    # A convolution of one channel has gradients of other strides, which the warning says is no error.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    if any(p.requires_grad for m in model.modules() if isinstance(m, _BatchNorm) for p in m.parameters()):
        if next(model.parameters()).device.type != "cuda":
            raise DistributedError("batch norm that is not frozen takes one process, or GPUs: its mean is of the batch")
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # replaces the modules inside, keeps their parameters
    return DistributedDataParallel(model)


def total(values: Tensor) -> list[float]:
    """Sums over all processes of values that lie where the data are."""
    sums = values.double()
    if world() > 1:
        dist.all_reduce(sums)
    return sums.tolist()


def from_main(get: Callable[[], T]) -> T:
    """What the main process gets, in all processes; so files need to be on its machine only."""
    if world() == 1:
        return get()
    box: list[Any] = [get() if is_main() else None]
    dist.broadcast_object_list(box)
    return box[0]


@contextmanager
def main_first() -> Iterator[None]:
    """The main process goes first, so that what it downloads is there for the others."""
    if not is_main():
        dist.barrier()
    yield
    if is_main() and world() > 1:
        dist.barrier()
