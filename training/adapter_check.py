"""Check an adapter's files before anything is served, merged or trained with them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

_NUMBERS: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_LORA = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.\w+)?\.weight")


def config_problem(config_file: Path) -> str | None:
    """Return what is wrong with an adapter's configuration, or None."""
    try:
        config = json.loads(config_file.read_bytes())
    except ValueError:
        return f"{config_file.name} is no JSON"
    if not isinstance(config, dict):
        return f"{config_file.name} holds no settings"
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        return f"{config_file.name} has rank r={rank!r}, which must be a whole number above 0"
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        return f"{config_file.name} has lora_alpha={alpha!r}, which must be a finite number"
    return None


def weights_problem(weights_file: Path, config_file: Path) -> str | None:
    """Return what is wrong with an adapter's weights, or None: unreadable, not finite, or not of the rank of the configuration."""
    config = json.loads(config_file.read_bytes())
    ranks = {config["r"], *(config.get("rank_pattern") or {}).values()}
    try:
        tensors = dict(deserialize(weights_file.read_bytes()))
    except (SafetensorError, ValueError) as error:
        return f"{weights_file.name} is no safetensors file ({error})"
    sides: dict[str, set[str]] = {}
    for name, tensor in sorted(tensors.items()):
        if not _finite(tensor):
            return f"{weights_file.name} holds NaN or infinite values in {name}"
        if not (found := _LORA.fullmatch(name)):
            continue
        sides.setdefault(found["module"], set()).add(found["side"])
        shape = tensor["shape"]
        rank = shape[0 if found["side"] == "A" else 1] if len(shape) > 1 else None
        # Adapters of a layer's parameters stack the matrices of its experts.
        if rank not in ranks and not config.get("target_parameters"):
            return f"{weights_file.name} has rank {rank} in {name}, and its configuration says {config['r']}"
    if not sides:
        return f"{weights_file.name} holds no LoRA matrices"
    if incomplete := sorted(module for module, of_module in sides.items() if of_module != {"A", "B"}):
        return f"{weights_file.name} holds one of the two matrices of {incomplete[0]} only"
    return None


def misfit(weights_file: Path, base_shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return where an adapter does not fit a base model with weights of these shapes (out, in), or None.

    Names that the base model does not have are compared only if it has others of the adapter, because some
    architectures name their modules otherwise in memory.
    """
    found = {}
    for name, tensor in sorted(deserialize(weights_file.read_bytes())):
        if (matched := _LORA.fullmatch(name)) and len(tensor["shape"]) == 2:
            found[matched["module"], matched["side"]] = tensor["shape"]
    of_base = {module: base_shapes.get(f"{module}.weight") for module, _ in found}
    if not any(of_base.values()):
        return None
    for (module, side), shape in found.items():
        wanted = of_base[module]
        if wanted is None:
            return f"{module}, which the base model does not have"
        if len(wanted) == 2 and shape[1 if side == "A" else 0] != wanted[1 if side == "A" else 0]:
            return f"{module}: its matrix {side} is {shape[0]} x {shape[1]}, the base's weights are {wanted[0]} x {wanted[1]}"
    return None


def _finite(tensor: dict[str, Any]) -> bool:
    data = tensor["data"]
    if tensor["dtype"] == "BF16":  # numpy has no such type: all bits of the exponent are set in NaN and infinity
        return not bool(((np.frombuffer(data, "<u2") & 0x7F80) == 0x7F80).any())
    numbers = _NUMBERS.get(tensor["dtype"])
    return numbers is None or bool(np.isfinite(np.frombuffer(data, numbers)).all())
