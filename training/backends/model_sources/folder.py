"""Base models as folders in Hugging Face layout: their files, checksums and sizes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from pathlib import Path

from pydantic import BaseModel

from training.errors import BadInput
from training.files import sha256_of_file

MODEL_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
WEIGHTS_SUFFIX = ".safetensors"
CHAT_TEMPLATE = "chat_template.jinja"
COMPACT_CALLS = "compact calls"
"""Text in chat templates whose tool calls are compact (`training.backends.torch.tool_calls`)."""


class BaseModelFiles(BaseModel):
    """A base model on this machine: `path` holds config, weights and tokenizer; `checksum` is `model_checksum`."""

    id: str
    path: Path
    checksum: str

    def content(self) -> str:
        """Return the checksum of everything that training with this model depends on.

        Unlike `checksum`, it covers the configuration, the tokenizer and every chat template.
        """
        others = (name for name in model_files(self.path) if not name.endswith(WEIGHTS_SUFFIX))
        return content_checksum(self.checksum, {name: file_sha256(self.path / name) for name in others})


def from_folder(folder: Path) -> BaseModelFiles:
    """Use a local folder in place. Raises `BadInput` if it lacks a file."""
    require_model_folder(folder)
    return BaseModelFiles(id=folder.resolve().name, path=folder.resolve(), checksum=model_checksum(folder))


def require_model_folder(folder: Path) -> None:
    """Raise `BadInput` unless `folder` has a config, a tokenizer and all weight files that its index names."""
    if not (folder / "config.json").is_file():
        raise BadInput(f"base_model: {folder} has no config.json: expected a folder in Hugging Face layout")
    if not (folder / "tokenizer_config.json").is_file():
        raise BadInput(
            f"base_model: {folder} has no tokenizer_config.json: save the tokenizer in the folder of the weights"
        )
    present = {file.name for file in weight_files(folder)}
    if missing := sorted(_named_weight_files(folder) - present):
        raise BadInput(f"base_model: {folder} lacks the weight file {missing[0]}: fetch the model again")
    if not present:
        raise BadInput(f"base_model: {folder} has no weights (*.safetensors)")


def _named_weight_files(folder: Path) -> set[str]:
    """Return the weight files that the index of a folder names; none without an index. Raises `BadInput` if it is damaged."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return set()
    try:
        return set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"base_model: {index} is damaged or not an index of weights: fetch the model again") from error


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files in `folder`, sorted by name."""
    return sorted(folder.glob(f"*{WEIGHTS_SUFFIX}"))


def weight_bytes(folder: Path) -> int:
    """Return the size of the weight files in bytes."""
    return sum(file.stat().st_size for file in weight_files(folder))


def parameter_count(folder: Path) -> int:
    """Return the number of parameters, from the headers of the safetensors files. Raises `BadInput` if one is damaged."""
    return sum(math.prod(shape) for shape in weight_shapes(folder).values())


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor, from the headers of the safetensors files. Raises `BadInput` if one is damaged."""
    return {name: shape for file in weight_files(folder) for name, shape in _shapes_in(file).items()}


def _shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, file.stat().st_size)))
        return {name: tuple(map(int, entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"base_model: {file} is damaged or not a safetensors file: fetch the model again") from error


def model_checksum(folder: Path) -> str:
    """Return the checksum of what an adapter is trained on: the weights, and a chat template with compact calls.

    It is the sha256 of a single weight file, or that of the `name sha256` lines of several files. Other templates do not count,
    because what a model's own one writes is known to the weights.
    """
    files = weight_files(folder)
    if has_compact_calls(folder):
        files = [folder / CHAT_TEMPLATE, *files]
    return combined_checksum({file.name: file_sha256(file) for file in files})


def has_compact_calls(folder: Path) -> bool:
    """Return whether the chat template in `folder` writes compact tool calls."""
    template = folder / CHAT_TEMPLATE
    return template.is_file() and COMPACT_CALLS in template.read_text(encoding="utf-8")


def combined_checksum(sums: dict[str, str]) -> str:
    """Return `model_checksum` of files whose sha256 are known by name."""
    if len(sums) == 1:
        return next(iter(sums.values()))
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(sums.items())).encode()).hexdigest()


def content_checksum(checksum: str, sums: dict[str, str]) -> str:
    """Return `BaseModelFiles.content` of a model whose files' sha256 are known by name."""
    others = {name: digest for name, digest in sums.items() if not name.endswith(WEIGHTS_SUFFIX)}
    return combined_checksum({"weights": checksum} | others)


def model_files(folder: Path) -> list[str]:
    """Return the names of all files of a model in Hugging Face layout, relative to its folder."""
    patterns = [*MODEL_FILES, "additional_chat_templates/*.jinja"]
    return sorted(
        str(file.relative_to(folder)) for pattern in patterns for file in folder.glob(pattern) if file.is_file()
    )


def file_sha256(file: Path) -> str:
    """Return the sha256 of a file."""
    # The Hub's cache names large files by their sha256 and links to them: no need to read 15 GB again on every run.
    if file.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", blob := Path(os.readlink(file)).name):
        return blob
    return sha256_of_file(file)
