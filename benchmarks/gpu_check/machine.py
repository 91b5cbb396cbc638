"""Limits of this machine, and the memory that the check takes."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import torch

from benchmarks.backend_sides.job import fastest
from benchmarks.gpu_check.workload import layer_dtype


def limits(device: torch.device, workload: SimpleNamespace) -> dict[str, float]:
    """Measure the largest rate of a matrix product, in the format of the layers, and of reading memory."""
    dtype = layer_dtype(device)
    a, b = (torch.randn(workload.matrix, workload.matrix, device=device).to(dtype) for _ in range(2))
    numbers = torch.randn(workload.read // 4, device=device)

    def product() -> None:
        torch.mm(a, b)
        synchronize(device)

    def read() -> None:
        numbers.sum()
        synchronize(device)

    product()
    read()
    return {
        "product_tflops": round(2 * workload.matrix**3 / fastest(product, 5)[0] / 1e12, 3),
        "read_gb_per_second": round(4 * numbers.numel() / fastest(read, 5)[0] / 1e9, 1),
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float:
    """Return the peak in GB: of the GPU since `reset_peak`, or of this process since it started."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)
