"""Export a checkpoint for other software: as PEFT's adapter folder, or merged into the base model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from training.backends.model_sources.folder import BaseModelFiles
from training.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    Checkpoint,
    CheckpointManifest,
    adapter_checksums,
)
from training.errors import BadInput


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


def write_merged(checkpoint: Checkpoint, base: BaseModelFiles, folder: Path) -> CheckpointManifest:
    """Write the base model with the adapter's weights added, as safetensors in the base's number format.

    Return the manifest that was written.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from training.backends.prompt_template import load_tokenizer

    model = AutoModelForCausalLM.from_pretrained(base.path, dtype="auto")
    merged = PeftModel.from_pretrained(model, checkpoint.path).merge_and_unload(safe_merge=True)
    merged.save_pretrained(folder)
    load_tokenizer(base.path).save_pretrained(folder)
    return _write_manifest(checkpoint.manifest, folder)


def _write_manifest(manifest: CheckpointManifest, folder: Path) -> CheckpointManifest:
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / MANIFEST, weights)  # safetensors makes its files unreadable to other users
    return manifest
