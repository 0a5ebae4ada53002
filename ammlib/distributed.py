"""One training on several processes, as torchrun starts them; with one process everything here does nothing.

The batch of a step is the concatenation of the processes' shares in the order of their ranks. Losses are scaled so
that their mean over the processes, which is what DistributedDataParallel differentiates, is that of the whole batch.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
GO_ON = "the same command, without --force, goes on from the last checkpoint"


class DistributedError(RuntimeError):
    """The processes of a job cannot go on together."""


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0 on."""
    return dist.get_rank() if world() > 1 else 0


def is_main() -> bool:
    """Is this the process that writes files and shows progress?"""
    return rank() == 0


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


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `wrapped`, which the attack calls as often as it likes."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def shard(samples: T) -> T:
    """This process's share of samples that all processes have: no overlap, none left out, perhaps none at all."""
    first, last = (-(-len(samples) * k // world()) for k in (rank(), rank() + 1))  # rounded up
    return samples if world() == 1 else samples[first:last]


class Shares:
    """How a batch is spread over the processes, of which this one holds `own` samples."""

    def __init__(self, own: int) -> None:
        sizes = [int(size) for size in _all_gather(torch.tensor([own]))]
        self.largest, self.total, self.sizes = max(sizes), sum(sizes), sizes
        if not self.total:
            raise ValueError("the batch is empty")
        self.rows = range(sum(sizes[: rank()]), sum(sizes[: rank() + 1]))  # of the batch, that are here
        self.weight = world() * own / self.total  # of a mean over the own samples in a loss

    def gather(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """Values (own,) of the samples here as values (total,) of all samples, without gradients."""
        if world() == 1:
            return columns
        table = torch.stack([column.detach().double() for column in columns], 1)  # one message for all of them
        padded = torch.cat([table, table.new_zeros(self.largest - len(table), len(columns))])
        parts = zip(_all_gather(padded), self.sizes, strict=True)
        whole = torch.cat([part[:size] for part, size in parts])
        return tuple(values.to(column.dtype) for values, column in zip(whole.unbind(1), columns, strict=True))

    def own(self, rows: Tensor) -> Tensor:
        """Those of the given rows of the batch that are here, as rows of this process's share."""
        if world() == 1:
            return rows
        return rows[(rows >= self.rows.start) & (rows < self.rows.stop)] - self.rows.start


def _all_gather(values: Tensor) -> list[Tensor]:
    """A tensor of the same shape from each process."""
    if world() == 1:
        return [values]
    parts = [torch.empty_like(values) for _ in range(world())]
    dist.all_gather(parts, values)
    return parts


def total(*values: float) -> list[float]:
    """Sums over all processes."""
    if world() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def anywhere(flag: bool) -> bool:
    """Is it so in any process?"""
    return total(flag)[0] > 0


def from_main(get: Callable[[], T]) -> T:
    """What the main process gets, in all processes; so files need to be on its machine only."""
    if world() == 1:
        return get()
    box = [get()] if is_main() else [None]
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
