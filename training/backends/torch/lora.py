"""LoRA adapters (Hu et al. 2021) and their files in PEFT's format."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from training.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from training.errors import BadInput

_PREFIX = "base_model.model."


class LoraAdapter:
    """Low-rank matrices per projection: weight + scale * b @ a, with a [r, in] and b [out, r].

    `key` tells adapters apart in the engine's cache; it is empty for one that has no file yet.
    """

    def __init__(
        self, key: str, matrices: dict[str, tuple[torch.Tensor, torch.Tensor]], alpha: float, scale: float
    ) -> None:
        self.key = key
        self.matrices = matrices
        self.alpha = alpha
        self.scale = scale

    def parameters(self) -> list[torch.Tensor]:
        """Return all matrices, in a fixed order."""
        return [matrix for name in sorted(self.matrices) for matrix in self.matrices[name]]

    def factors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return all matrices a and all matrices b, in the order of `parameters`."""
        pairs = [self.matrices[name] for name in sorted(self.matrices)]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def layers(self) -> list[int]:
        """Return the adapted layers, ascending."""
        return sorted({layer_index(name) for name in self.matrices})


def new_adapter(
    shapes: Mapping[str, tuple[int, int]], rank: int, alpha: float, seed: int, device: torch.device
) -> LoraAdapter:
    """Return a fresh adapter for projections of `shapes` (out, in): a is Kaiming-uniform, b zero (as in PEFT)."""
    generator = torch.Generator().manual_seed(seed)
    matrices = {}
    for name, (out_features, in_features) in shapes.items():
        bound = math.sqrt(1 / in_features)  # kaiming_uniform_ with a = sqrt(5)
        a = (torch.rand(rank, in_features, generator=generator) * 2 - 1) * bound
        matrices[name] = (a.to(device), torch.zeros(out_features, rank, device=device))
    return LoraAdapter("", matrices, alpha, alpha / rank)


def load_adapter(
    path: str | os.PathLike[str], shapes: Mapping[str, tuple[int, int]], model: str, device: torch.device
) -> LoraAdapter:
    """Read a PEFT LoRA folder. Raise `BadInput` when it is incomplete or does not fit projections of `shapes` (out, in)."""
    folder = Path(path)
    for needed in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / needed).is_file():
            raise BadInput(f"No LoRA adapter in {folder}: {needed} is missing.")
    config = json.loads((folder / ADAPTER_CONFIG).read_text())
    if config.get("rank_pattern") or config.get("alpha_pattern") or config.get("use_dora"):
        raise BadInput(f"The adapter in {folder} uses per-layer ranks or DoRA, which this backend does not serve.")
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    pairs: dict[str, dict[str, torch.Tensor]] = {}
    for tensor_name, tensor in load_file(folder / ADAPTER_WEIGHTS).items():
        found = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight", tensor_name)
        if not found or found[1] not in shapes:
            raise BadInput(f"The adapter in {folder} does not fit {model}: no place for {tensor_name}.")
        pairs.setdefault(found[1], {})[found[2]] = tensor.to(device, torch.float32)
    matrices = {}
    for name, pair in pairs.items():
        if set(pair) != {"A", "B"} or (pair["B"].shape[0], pair["A"].shape[1]) != shapes[name]:
            found_shapes = {side: tuple(matrix.shape) for side, matrix in pair.items()}
            raise BadInput(
                f"The adapter in {folder} was trained on another base model: {name} has shapes {found_shapes}, "
                f"{model} needs {shapes[name]}."
            )
        matrices[name] = (pair["A"], pair["B"])
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    stamp = (folder / ADAPTER_WEIGHTS).stat()
    return LoraAdapter(f"{folder.resolve()}:{stamp.st_mtime_ns}", matrices, alpha, scale)


def save_adapter(adapter: LoraAdapter, folder: Path, layer_count: int, base_model: str) -> None:
    """Write `adapter` of a model with `layer_count` layers as a PEFT folder (float32)."""
    from peft import LoraConfig

    layers = adapter.layers()
    config = LoraConfig(
        r=next(iter(adapter.matrices.values()))[0].shape[0],
        lora_alpha=adapter.alpha,
        lora_dropout=0.0,
        target_modules=sorted({name.rsplit(".", 1)[1] for name in adapter.matrices}),
        layers_to_transform=layers if len(layers) < layer_count else None,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_model,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    tensors = {}
    for name, (a, b) in adapter.matrices.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = a.detach().cpu().contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = b.detach().cpu().contiguous()
    save_file(tensors, folder / ADAPTER_WEIGHTS)


def layer_index(name: str) -> int:
    """Return the layer of a projection named like `model.layers.3.mlp.up_proj`."""
    return int(name.split(".")[2])
