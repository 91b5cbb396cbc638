"""What the check computes: random models of given shapes, and prompts for them."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.backend_sides.job import ModelSize
from training.backends.torch.scheduler import Completion
from training.backends.torch.token_tree import Sample

_QWEN = {
    "vocab_size": 151_936,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
SHAPES: dict[str, dict[str, Any]] = {
    "0.5b": {
        **_QWEN,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "1.5b": {
        **_QWEN,
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
    "tiny": {
        **_QWEN,
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "initializer_range": 0.1,
    },
}

# Lengths are odd, because kernels differ by alignment.
FULL = SimpleNamespace(lengths=(53, 603, 2_001), groups=4, rollouts=8, prompt=603, reply=125, matrix=8_192, read=2**30)
TINY = SimpleNamespace(lengths=(20, 50), groups=2, rollouts=4, prompt=40, reply=8, matrix=256, read=2**20)


def save_random_model(folder: Path, shape: str, device: torch.device) -> Path:
    """Write a model of `shape` with random weights in the device's number format."""
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[shape], max_position_embeddings=4_096, tie_word_embeddings=True)
    with device:
        model = Qwen2ForCausalLM(config)
    for layer in model.model.layers:  # zero at initialisation, and then a lost bias would go unnoticed
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(projection.bias, std=0.1)
    model.to(layer_dtype(device)).save_pretrained(folder)
    return folder


def layer_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def random_ids(size: ModelSize, count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(8, size.vocabulary) for _ in range(count)]


def sample_of(opening: list[int], reply: Completion) -> Sample:
    ids = torch.tensor([*opening, *reply.token_ids]).numpy()
    return Sample(ids, torch.arange(len(opening), len(ids)).numpy())
