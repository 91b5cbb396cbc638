"""Unsloth on a CPU: a transformers model in bfloat16 with PEFT's LoRA, and the forward pass that ART expects of Unsloth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import CausalLMOutput


class FastLanguageModel:
    @staticmethod
    def from_pretrained(
        model_name: str, max_seq_length: int, load_in_4bit: bool
    ) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
        """Return model and tokenizer of a folder: of a base, or of an adapter, which is then trained further."""
        tokenizer = AutoTokenizer.from_pretrained(model_name)
        if (Path(model_name) / "adapter_config.json").exists():
            model = AutoPeftModelForCausalLM.from_pretrained(model_name, is_trainable=True, dtype=torch.bfloat16)
            _forward_as_unsloth(model.get_base_model())
        else:
            model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.bfloat16)
            _forward_as_unsloth(model)
        return model, tokenizer

    @staticmethod
    def get_peft_model(
        model: PreTrainedModel,
        r: int,
        lora_alpha: int,
        target_modules: list[str],
        random_state: int,
        use_gradient_checkpointing: str,
    ) -> PeftModel:
        torch.manual_seed(random_state)
        return get_peft_model(
            model, LoraConfig(r=r, lora_alpha=lora_alpha, target_modules=target_modules, task_type="CAUSAL_LM")
        )


def _forward_as_unsloth(model: Any) -> None:
    """Take ART's mask, and return hidden states as logits where it asks for these."""

    def forward(
        input_ids: torch.Tensor,
        causal_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        mask = attention_mask if causal_mask is None else causal_mask.unsqueeze(1).to(model.dtype)
        states = model.model(input_ids=input_ids, attention_mask=mask, use_cache=False).last_hidden_state
        if os.environ.get("UNSLOTH_RETURN_HIDDEN_STATES") == "1":
            return CausalLMOutput(logits=states)
        logits = model.lm_head(states)
        loss = model.loss_function(logits, labels, model.config.vocab_size, num_items_in_batch=num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits)

    model.forward = forward
