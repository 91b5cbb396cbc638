"""Read by every Python with this folder in `PYTHONPATH`: a machine whose `torch.cuda` reports `REHEARSED_GPUS` GPUs.

Of ART only two values change: the folder of the bundle from which it installs vLLM, and the device to which weights go back.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MEMORY = 80 * 10**9


def _gpus(cuda: Any) -> None:
    """Nothing is computed on these GPUs: a tensor that is sent there raises an error."""
    nothing = lambda *_, **__: None  # noqa: E731
    cuda.is_available = cuda.is_bf16_supported = lambda *_, **__: True
    cuda.device_count = lambda: int(os.environ["REHEARSED_GPUS"])
    cuda.get_device_name = lambda *_: "rehearsed GPU"
    cuda.get_device_properties = lambda *_: SimpleNamespace(name="rehearsed GPU", total_memory=MEMORY)
    cuda.mem_get_info = lambda *_: (MEMORY, MEMORY)
    cuda.synchronize = cuda.empty_cache = cuda.ipc_collect = nothing


def _bundle(runtime: Any) -> None:
    runtime._bundled_runtime_dir = lambda: Path(os.environ["REHEARSED_VLLM_BUNDLE"])


def _back_to_memory(train: Any) -> None:
    train.UnslothTrainContext.reload_to_gpu.__defaults__ = ("cpu",)


_CHANGES = {"torch.cuda": _gpus, "art.vllm_runtime": _bundle, "art.unsloth.train": _back_to_memory}


class _AfterImport:
    """Changes modules when they are imported: importing torch in every process would take minutes."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _CHANGES:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def changed(module: ModuleType) -> None:
            execute(module)
            _CHANGES[name](module)

        spec.loader.exec_module = changed
        return spec


sys.meta_path.insert(0, _AfterImport())
