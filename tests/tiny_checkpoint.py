"""A checkpoint of a random adapter on a tiny base model of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends.base_model import resolve_base_model
from training.checkpoint import Checkpoint


def tiny_checkpoint(
    folder: Path, seed: int, data: dict[str, str] | None = None, step: int = 1, **trained_with: Any
) -> Checkpoint:
    base = save_tiny_model(folder / f"base-{seed}", "llama", seed=seed, context=8192)
    adapter = folder / f"adapter-{seed}"
    lora = LoraConfig(
        r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False
    )
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(adapter)
    files = resolve_base_model(str(base), folder)
    return Checkpoint.from_adapter(
        adapter,
        base_model=files.id,
        base_model_checksum=files.checksum,
        base_model_source=str(base),
        name=f"tiny-{seed}",
        step=step,
        config={"max_tokens": 8, "max_turns": 1, "max_concurrent": 4, **trained_with},
        data=data or {},
        created=datetime.now(UTC),
    ).save(folder / f"checkpoint-{seed}")
