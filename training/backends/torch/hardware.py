"""Properties of the machine for the torch backend: processors, number format of the products, freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

import torch

from training.backends.torch.joint_linear import multiplies_bfloat16
from training.backends.torch.settings import TorchSettings


def chosen_device(settings: TorchSettings) -> torch.device:
    """Return the device of `settings`; `auto` takes CUDA when there is one."""
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def chosen_matmul_dtype(settings: TorchSettings, dtype: torch.dtype) -> torch.dtype:
    """Return the number format of the matrix products of a network of `dtype`. Only float32 (CPU) leaves a choice."""
    if dtype != torch.float32:
        return dtype
    if settings.matmul_dtype == "auto":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    return torch.bfloat16 if settings.matmul_dtype == "bfloat16" else torch.float32


def physical_cores() -> int:
    """Return the number of physical cores that this process may run on (hyper-threads share one)."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return max(1, len(cores))


def release_memory() -> None:
    """Return freed memory to the system. Allocators keep the peak of an update otherwise."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
