"""Memory that a base model takes on a CPU in the torch backend, and what is free."""

from __future__ import annotations

from pathlib import Path

from training.backends.model_sources.wheels import PACKAGED_MODELS
from training.errors import BadInput

_FLOAT32, _BFLOAT16 = 4, 2


def available_memory() -> int | None:
    """Return the bytes of main memory that are free; `None` where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def bytes_per_parameter(matmul_dtype: str) -> int:
    """Return what a parameter takes: weights are loaded in float32, and layers keep a copy packed for their products."""
    from training.backends.torch.joint_linear import multiplies_bfloat16

    in_bfloat16 = matmul_dtype == "bfloat16" or (matmul_dtype == "auto" and multiplies_bfloat16())
    return _FLOAT32 + (_BFLOAT16 if in_bfloat16 else _FLOAT32)


def require_memory(model: str, parameters: int, matmul_dtype: str, *, free: float | None, beside: float = 0.0) -> float:
    """Return the bytes that a model and everything else (`beside`) take. Raises `BadInput` if fewer are free."""
    each = bytes_per_parameter(matmul_dtype)
    needed = beside + each * parameters
    if free is not None and free < needed:
        raise BadInput(_too_little(model, free, needed, most_parameters=(free - beside) / each))
    return needed


def _too_little(model: str, free: float, needed: float, most_parameters: float) -> str:
    fitting = [packaged for packaged in PACKAGED_MODELS if packaged.parameters <= most_parameters]
    line = f"{free / 1e9:.1f} GB of memory are free, and {model} needs {needed / 1e9:.1f} GB at least"
    if not fitting:
        return f"{line}: free some memory"
    largest = max(fitting, key=lambda packaged: packaged.parameters)
    return (
        f"{line}: free some memory, or take a base model of at most {most_parameters / 1e9:.2g} billion parameters, "
        f"such as {largest.requirement}"
    )
