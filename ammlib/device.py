"""What depends on the machine: which device to use, and how the C library hands out memory on a CPU."""

import ctypes
import sys
from contextlib import AbstractContextManager

import torch


def best_device() -> torch.device:
    """The first GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random_state_kept(device: torch.device) -> AbstractContextManager:
    """Whatever is drawn inside, the random state afterwards is as before, on the CPU and on the given device."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def keep_freed_memory() -> None:
    """Let glibc reuse freed blocks instead of returning them to the kernel after every step.

    Weight-sized temporaries of a double backward otherwise cost page faults anew each time: measured on the MNIST MLP,
    the backward pass of an AMM step takes 14 instead of 20 ms. Does nothing where there is no glibc.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_threshold, one_gib = -1, -3, 1 << 30
        mallopt(m_mmap_threshold, one_gib)
        mallopt(m_trim_threshold, one_gib)
