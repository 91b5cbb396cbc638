"""Limits of the processor: the rates of a large matrix product and of reading memory."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from benchmarks.backend_sides.job import fastest, job_of_command
from training.backends.torch.joint_linear import multiplies_bfloat16

_READ_NUMBERS = 64 * 2**20
"""256 MB in float32, larger than any cache."""
_TRIES = 5


def main() -> None:
    job = job_of_command()
    torch.set_num_threads(job.threads)
    figures = {}
    size = job.gemm_size
    dtypes = [torch.float32]
    # On a processor without bfloat16 instructions one product of this size takes minutes.
    if multiplies_bfloat16() or job.dtype == "bfloat16":
        dtypes.append(torch.bfloat16)
    for dtype in dtypes:
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        out = torch.empty(size, size, dtype=dtype)
        torch.mm(a, b, out=out)
        seconds, _ = fastest(lambda: torch.mm(a, b, out=out), _TRIES)  # noqa: B023
        figures[f"gemm_{str(dtype).removeprefix('torch.')}_gflops"] = 2 * size**3 / seconds / 1e9
    # Both read each number once; which is faster depends on PyTorch's math library.
    rows, vector = torch.randn(_READ_NUMBERS // 4096, 4096), torch.randn(4096)
    reads: tuple[Callable[[], torch.Tensor], ...] = (lambda: torch.mv(rows, vector), lambda: rows.sum())
    seconds = min(fastest(read, _TRIES)[0] for read in reads)
    figures["memory_gb_per_second"] = 4 * rows.numel() / seconds / 1e9
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
