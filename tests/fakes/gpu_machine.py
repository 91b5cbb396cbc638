"""A machine with GPUs, for ART's own backend on a CPU. Stand-ins answer at the border of ART; its own code is what runs.

* `torch.cuda` reports GPUs; a tensor for one of them is on the CPU.
* Unsloth and TRL are the modules in `gpu_packages`.
* vLLM is installed by ART's installer, from the bundle of `tests.fakes.vllm_runtime`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from art import vllm_runtime

from tests.fakes.vllm_runtime import offline, write_bundle

PACKAGES = Path(__file__).parent / "gpu_packages"
_GPUS, _BUNDLE = "TESTS_GPUS", "TESTS_VLLM_BUNDLE"
_MEMORY = 80 * 10**9
_empty = torch.empty


def gpu_machine(folder: Path, gpus: int = 1) -> dict[str, str]:
    """Return the variables of a process that `become_gpu_machine` is called in. ART installs vLLM in `folder`."""
    bundle = folder / "bundle"
    if not bundle.exists():
        write_bundle(folder)
    cache = {"ART_VLLM_RUNTIME_CACHE_DIR": str(folder / "cache")}
    return offline(folder) | cache | {_GPUS: str(gpus), _BUNDLE: str(bundle)}


def become_gpu_machine(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make this process, whose environment has `gpu_machine`, one of a machine with GPUs. The stand-in for Unsloth calls it in
    the process of the trainer."""
    if torch.empty is _on_the_cpu:
        return
    gpus, bundle = int(os.environ[_GPUS]), Path(os.environ[_BUNDLE])
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: gpus,
        "get_device_name": lambda number=0: "NVIDIA H200",
        "get_device_properties": lambda number=0: SimpleNamespace(name="NVIDIA H200", total_memory=_MEMORY),
        "mem_get_info": lambda number=0: (_MEMORY, _MEMORY),
    }
    nothing = dict.fromkeys(("synchronize", "empty_cache", "ipc_collect"), lambda: None)
    for name, answer in (answers | nothing).items():
        replace(torch.cuda, name, answer)
    replace(torch, "empty", _on_the_cpu)
    replace(vllm_runtime, "_bundled_runtime_dir", lambda: bundle)
    if str(PACKAGES) not in sys.path:
        replace(sys, "path", [str(PACKAGES), *sys.path])  # multiprocessing gives it to the trainer's process


def _on_the_cpu(*arguments: Any, **named: Any) -> torch.Tensor:
    return _empty(*arguments, **named | ({"device": "cpu"} if "cuda" in str(named.get("device")) else {}))
