"""The tensors of a model folder, read one at a time."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from training.backends.model_sources.folder import weight_files
from training.errors import BadInput


class WeightFiles:
    """The safetensors files of a model. A tensor is a part of the mapped file and unmapped when it is freed."""

    def __init__(self, folder: Path) -> None:
        """Look up where each tensor is. Raise `BadInput` if a file is damaged."""
        self._folder = folder
        self._file_of: dict[str, Path] = {}
        for file in weight_files(folder):
            try:
                with safe_open(file, framework="pt") as tensors:
                    self._file_of |= dict.fromkeys(tensors.keys(), file)
            except SafetensorError as error:
                raise BadInput(f"{file} is damaged or not a safetensors file: fetch the model again.") from error

    def read(self, name: str, shape: torch.Size) -> torch.Tensor:
        """Return a tensor as it is stored. Raise `BadInput` if it is missing or not of `shape`."""
        if name not in self._file_of:
            raise BadInput(f"The model in {self._folder} has no tensor {name}: fetch it again.")
        with safe_open(self._file_of[name], framework="pt") as tensors:
            tensor: torch.Tensor = tensors.get_tensor(name)
        if tensor.shape != shape or not tensor.is_floating_point():
            found = f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise BadInput(
                f"The model in {self._folder}: {name} is {found}, its config.json asks for floats {tuple(shape)}."
            )
        return tensor
