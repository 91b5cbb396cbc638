"""A tiny, randomly initialised Llama and Qwen2 with a byte-level tokenizer: real mechanics in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import training.backends
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = Path(training.backends.__file__).parent / "chat_templates" / "chatml_hermes.jinja"
TEXT = [
    "system user assistant tool search the mails and read them",
    '{"name": "search", "arguments": {"keywords": []}}',
]


FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def save_tiny_model(
    folder: Path,
    family: str,
    seed: int = 0,
    hidden: int = 48,
    context: int = 1024,
    text: Sequence[str] = TEXT,
    vocabulary: int = 320,
    template: Path = TEMPLATE,
) -> Path:
    """Write model and tokenizer to `folder`; weights are large enough that distributions are far from uniform.

    A mail takes a `context` of 8,192: tokens are hardly more than bytes, except those of another `text` with a larger `vocabulary`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", additional_special_tokens=SPECIAL
    )
    fast.model_max_length = context
    fast.chat_template = template.read_text()
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(fast),
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "initializer_range": 0.3,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 2,
    }
    if family == "qwen3":
        sizes["head_dim"] = hidden // sizes["num_attention_heads"]
    configuration, kind = FAMILIES[family]
    model = kind(configuration(**sizes))
    if family == "qwen2":
        for layer in model.model.layers:  # zero at initialisation, and then a lost bias would go unnoticed
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                torch.nn.init.normal_(projection.bias)
    model.save_pretrained(folder)
    return folder


def random_adapter(network: PolicyNetwork, seed: int = 0, layers: int | None = 2) -> LoraAdapter:
    """An adapter that changes something."""
    adapter = network.new_adapter(4, 8.0, layers, seed)
    generator = torch.Generator().manual_seed(seed)
    for _, b in adapter.matrices.values():
        b.copy_(torch.randn(b.shape, generator=generator) * 0.1)
    adapter.key = f"random-{seed}"
    return adapter
