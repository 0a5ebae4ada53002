"""What the method has to know of several processes: with one, everything here does nothing.

The batch of a step is the concatenation of the processes' shares in the order of their ranks. Losses are scaled so
that their mean over the processes, which is what DistributedDataParallel differentiates, is that of the whole batch.
"""

from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T", bound="Rows")


class Rows(Protocol):
    """Samples that can be counted and cut, such as a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self: T, rows: slice, /) -> T: ...


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0 on."""
    return dist.get_rank() if world() > 1 else 0


def is_main() -> bool:
    """Is this the process that writes files and shows progress?"""
    return rank() == 0


def shard(samples: T) -> T:
    """This process's share of samples that all processes have: no overlap, none left out, perhaps none at all."""
    first, last = (-(-len(samples) * k // world()) for k in (rank(), rank() + 1))  # rounded up
    return samples if world() == 1 else samples[first:last]


class Shares:
    """How a batch is spread over the processes, of which this one holds `own` samples on a `device`."""

    def __init__(self, own: int, device: torch.device | str) -> None:
        self.sizes, self.device = [own], device
        if world() > 1:  # on the device of the data: a backend such as NCCL knows no other
            self.sizes = [int(size) for size in _all_gather(torch.tensor([own], device=device))]
        self.largest, self.total = max(self.sizes), sum(self.sizes)
        if not self.total:
            raise ValueError("the batch is empty")
        start = sum(self.sizes[: rank()])
        self.rows = slice(start, start + own)  # of the batch, that are here
        self.weight = world() * own / self.total  # of a mean over the own samples in a loss

    def gather(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """Values (own,) of the samples here as values (total,) of all samples, without gradients."""
        if world() == 1:
            return columns
        table = torch.stack([column.detach().double() for column in columns], 1).to(self.device)  # one message for all
        padded = torch.cat([table, table.new_zeros(self.largest - len(table), len(columns))])
        parts = zip(_all_gather(padded), self.sizes, strict=True)
        whole = torch.cat([part[:size] for part, size in parts])
        return tuple(values.to(column) for values, column in zip(whole.unbind(1), columns, strict=True))

    def own(self, values: Tensor) -> Tensor:
        """Those of the values (total,) of all samples that belong to the samples here."""
        return values[self.rows]


def anywhere(flag: Tensor) -> bool:
    """Is it so in any process? The flag is on the device of the data."""
    return any(bool(one) for one in _all_gather(flag.view(1)))


def _all_gather(values: Tensor) -> list[Tensor]:
    """A tensor of the same shape from each process."""
    if world() == 1:
        return [values]
    parts = [torch.empty_like(values) for _ in range(world())]
    dist.all_gather(parts, values)
    return parts
