"""Memory that a base model takes on a CPU in the torch backend, and what is free."""

from __future__ import annotations

import psutil

from training.backends.model_sources.wheels import PACKAGED_MODELS
from training.backends.torch.settings import TorchEngineSettings
from training.errors import BadInput

_FLOAT32, _BFLOAT16 = 4, 2
_COMPACT = {"bfloat16": 2, "int8": 1}


def available_memory() -> int:
    """Return the bytes of main memory that are free."""
    return psutil.virtual_memory().available


def bytes_per_parameter(settings: TorchEngineSettings) -> int:
    """Return the bytes per parameter: one compact copy, or otherwise two copies, one of them packed for products."""
    from training.backends.torch.joint_linear import multiplies_bfloat16

    if settings.base_weights != "auto":
        return _COMPACT[settings.base_weights]
    in_bfloat16 = settings.matmul_dtype == "bfloat16" or (settings.matmul_dtype == "auto" and multiplies_bfloat16())
    return _FLOAT32 + (_BFLOAT16 if in_bfloat16 else _FLOAT32)


def require_memory(
    model: str, parameters: int, settings: TorchEngineSettings, *, free: float | None, reserved: float = 0.0
) -> float:
    """Return the bytes that a model and everything else (`reserved`) take. Raises `BadInput` if fewer are free."""
    needed = reserved + bytes_per_parameter(settings) * parameters
    if free is not None and free < needed:
        raise BadInput(_too_little(model, parameters, settings, free, needed, reserved))
    return needed


def _too_little(
    model: str, parameters: int, settings: TorchEngineSettings, free: float, needed: float, reserved: float
) -> str:
    line = f"{free / 1e9:.1f} GB of memory are free, and {model} needs {needed / 1e9:.1f} GB at least"
    in_8_bits = reserved + _COMPACT["int8"] * parameters
    if in_8_bits <= free:
        return (
            f"{line}: set torch.base_weights to int8, with which it needs {in_8_bits / 1e9:.1f} GB, or free some memory"
        )
    most_parameters = (free - reserved) / bytes_per_parameter(settings)
    fitting = [packaged for packaged in PACKAGED_MODELS if packaged.parameters <= most_parameters]
    if not fitting:
        return f"{line}: free some memory"
    largest = max(fitting, key=lambda packaged: packaged.parameters)
    return (
        f"{line}: free some memory, or take a base model of at most {most_parameters / 1e9:.2g} billion parameters, "
        f"such as {largest.requirement}"
    )
