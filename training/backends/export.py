"""Export a checkpoint for other software: as PEFT's adapter folder, or merged into the base model, also as GGUF."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from training.backends.model_sources.folder import BaseModelFiles
from training.backends.model_sources.gguf import last_line
from training.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    Checkpoint,
    CheckpointManifest,
    adapter_checksums,
)
from training.errors import BadInput

if TYPE_CHECKING:
    import torch

GGUF_FLOAT16 = "model-f16.gguf"
_LLAMA_QUANTIZE = "llama-quantize"


def write_adapter(checkpoint: Checkpoint, base: BaseModelFiles, folder: Path) -> CheckpointManifest:
    """Write adapter (float16), manifest and the tokenizer with the chat template that the adapter was trained with.

    Return the manifest that was written, which has the checksums of the written files.
    `adapter_config.json` names the base model by its id: the path that it was trained from exists on one machine only.
    """
    import torch
    from safetensors.torch import load_file, save_file

    from training.backends.prompt_template import load_tokenizer

    load_tokenizer(base.path).save_pretrained(folder)
    weights = load_file(checkpoint.path / ADAPTER_WEIGHTS)
    halves = {name: tensor.to(torch.float16) for name, tensor in weights.items()}
    if too_large := next((name for name, tensor in halves.items() if not tensor.isfinite().all()), None):
        raise BadInput(f"export: {too_large} has values beyond float16: export with --merged")
    save_file(halves, folder / ADAPTER_WEIGHTS)
    config = json.loads((checkpoint.path / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base.id
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return _write_manifest(checkpoint.manifest.model_copy(update=adapter_checksums(folder)), folder)


def write_merged(
    checkpoint: Checkpoint, base: BaseModelFiles, folder: Path, dtype: torch.dtype | None = None
) -> CheckpointManifest:
    """Write the base model with the adapter's weights added, as safetensors in `dtype` (the base's number format).

    Return the manifest that was written.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from training.backends.prompt_template import load_tokenizer

    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=dtype or "auto")
    merged = PeftModel.from_pretrained(model, checkpoint.path).merge_and_unload(safe_merge=True)
    merged.save_pretrained(folder)
    load_tokenizer(base.path).save_pretrained(folder)
    return _write_manifest(checkpoint.manifest, folder)


def write_gguf_files(
    checkpoint: Checkpoint, base: BaseModelFiles, folder: Path, progress: Callable[[str], None]
) -> CheckpointManifest:
    """Write the merged model as GGUF in float16, Q8_0 and, where llama.cpp's own tool is installed, Q4_K_M.

    The adapter is added in float32, so that each weight is rounded once. Return the manifest that was written.
    """
    import torch

    from training.backends.gguf_writing import write_gguf

    merged = folder / "merged"
    write_merged(checkpoint, base, merged, torch.float32)
    write_gguf(merged, folder / GGUF_FLOAT16, "float16")
    write_gguf(merged, folder / "model-q8_0.gguf", "q8_0")
    shutil.rmtree(merged)
    _quantize_q4(folder, progress)
    return _write_manifest(checkpoint.manifest, folder)


def _quantize_q4(folder: Path, progress: Callable[[str], None]) -> None:
    if (tool := shutil.which(_LLAMA_QUANTIZE)) is None:
        progress(f"no Q4_K_M file: llama.cpp's {_LLAMA_QUANTIZE}, which writes it, is not on the PATH")
        return
    words = [tool, str(folder / GGUF_FLOAT16), str(folder / "model-q4_k_m.gguf"), "Q4_K_M"]
    result = subprocess.run(words, check=False, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        raise BadInput(f"export: {last_line(result.stderr)} ({tool}, exit code {result.returncode})")


def _write_manifest(manifest: CheckpointManifest, folder: Path) -> CheckpointManifest:
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / MANIFEST, weights)  # safetensors makes its files unreadable to other users
    return manifest
