"""A tiny model that always gives the same answer: its vocabulary has one token for the whole call."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.training.backends.torch.tiny_models import save_tiny_model

ANSWER = "the constant answer"
_MARGIN = 20.0
"""Logit of the right token above all others; training for a few steps does not make up for it."""


def save_constant_model(folder: Path) -> Path:
    """Write a model that replies to every prompt with a call of the final tool, and then ends its reply."""
    save_tiny_model(folder, "llama", context=8192)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    arguments = {"answer": ANSWER, "source_ids": []}
    call = f"<tool_call>\n{json.dumps({'name': 'return_final_answer_tool', 'arguments': arguments})}\n</tool_call>"
    tokenizer.add_tokens([AddedToken(call, special=False)])
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    [call_id] = tokenizer.encode(call)
    with torch.no_grad():
        # Layers add nothing, so the logits depend on the last token alone: is it the call or another one?
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embeddings.zero_()
        embeddings[:, 0] = 1.0
        embeddings[call_id] = torch.eye(embeddings.shape[1])[1]
        head.zero_()
        scale = _MARGIN / embeddings.shape[1] ** 0.5  # the last norm makes the vector this long
        head[call_id, 0], head[tokenizer.eos_token_id, 1] = scale, scale
    model.save_pretrained(folder)
    return folder
