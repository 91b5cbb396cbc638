"""Unsloth as ART calls it, on a CPU and in float32: it loads a base or a checkpoint, adds an adapter, and returns hidden states."""

from __future__ import annotations

import functools
import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from tests.fakes.gpu_machine import become_gpu_machine

become_gpu_machine()


class FastLanguageModel:
    @staticmethod
    def from_pretrained(*, model_name: str, max_seq_length: int, load_in_4bit: bool) -> tuple[Any, Any]:
        """Of a checkpoint the adapter is loaded on its base, to be trained on."""
        # ART describes ten million empty rows, which nothing reads: 8 s and 2 GB.
        sys.modules["art.unsloth.train"].range = lambda *bounds: range(*(min(bound, 100_000) for bound in bounds))  # type: ignore[attr-defined]
        is_adapter = (Path(model_name) / "adapter_config.json").exists()
        base = PeftConfig.from_pretrained(model_name).base_model_name_or_path if is_adapter else model_name
        model = AutoModelForCausalLM.from_pretrained(base)
        assert max_seq_length <= model.config.max_position_embeddings
        model.forward = functools.partial(_forward, model)
        if is_adapter:
            model = PeftModel.from_pretrained(model, model_name, is_trainable=True, torch_device="cpu")
        gc.freeze()  # ART searches for garbage nine times an update
        return model, AutoTokenizer.from_pretrained(base)

    @staticmethod
    def get_peft_model(
        model: PreTrainedModel,
        *,
        r: int,
        lora_alpha: int,
        random_state: int,
        target_modules: list[str],
        use_gradient_checkpointing: str,
    ) -> Any:
        torch.manual_seed(random_state)
        return get_peft_model(
            model, LoraConfig(r=r, lora_alpha=lora_alpha, target_modules=target_modules, task_type="CAUSAL_LM")
        )


def _forward(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    causal_mask: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | None = None,
    **_: Any,
) -> CausalLMOutputWithPast:
    """`causal_mask` is an attention bias, of shape (batch, tokens, tokens)."""
    if causal_mask is None:
        assert attention_mask is not None
        causal_mask = torch.zeros(*input_ids.shape, input_ids.shape[1])
        seen = torch.ones_like(causal_mask, dtype=torch.bool).tril() & attention_mask.bool()[:, None]
        causal_mask.masked_fill_(~seen, torch.finfo(torch.float32).min)
    # As a mapping, transformers takes the mask as it is: ART's patch of its preparation fits the release of the GPU profile only.
    masks = {"full_attention": causal_mask[:, None].to(model.dtype)}
    hidden = model.model(input_ids=input_ids, attention_mask=masks, use_cache=False).last_hidden_state
    if os.environ["UNSLOTH_RETURN_HIDDEN_STATES"] == "1":
        return CausalLMOutputWithPast(logits=hidden)
    logits = model.lm_head(hidden)
    assert labels is not None and num_items_in_batch is not None
    summed = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return CausalLMOutputWithPast(loss=summed / num_items_in_batch, logits=logits)
