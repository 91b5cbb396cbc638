"""The speed of this machine in the products that a run spends its time on."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from training.backends.torch.hardware import chosen_matmul_dtype, physical_cores
from training.backends.torch.settings import TorchSettings

_TOKENS, _WIDTH, _INNER = 512, 576, 1536
"""Rows of a step of the engine, and the sizes of an MLP of SmolLM2-135M."""


def cpu_flops(settings: TorchSettings, seconds: float = 3.0) -> float:
    """Return the floating-point operations per second of a small model's matrix products on the CPU.

    Measures for `seconds`, in a thread that then ends, and with it that thread's OpenMP team (see `Engine`).
    """
    with ThreadPoolExecutor(1) as measuring:
        return measuring.submit(_measure, settings, seconds).result()


@torch.inference_mode()
def _measure(settings: TorchSettings, seconds: float) -> float:
    torch.set_num_threads(settings.threads or physical_cores())
    dtype = chosen_matmul_dtype(settings, torch.float32)
    up, down = torch.randn(_INNER, _WIDTH, dtype=dtype), torch.randn(_WIDTH, _INNER, dtype=dtype)
    rows = torch.randn(_TOKENS, _WIDTH, dtype=dtype)
    F.linear(F.linear(rows, up), down)  # the first product prepares the kernels
    rounds, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        F.linear(F.linear(rows, up), down)
        rounds += 1
    return rounds * 2 * 2 * _TOKENS * _WIDTH * _INNER / elapsed
