"""Write a Llama or Qwen2 model of transformers as the GGUF file that llama.cpp reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from safetensors.torch import load_file

from training.errors import BadInput

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


_KINDS = {
    "float32": GGMLQuantizationType.F32,
    "bfloat16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
}


def write_gguf(model: Path, path: Path, dtype: str) -> None:
    """Write weights in `dtype` (float32, bfloat16 or q8_0), norms and biases in float32, and the tokenizer's chat template.

    Raises `BadInput` for a model that is not a Llama or Qwen2 with a byte-level BPE.
    """
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    if config["model_type"] not in ("llama", "qwen2") or tokenizer["model"]["type"] != "BPE":
        raise BadInput(f"{model.name} is not a Llama or Qwen2 model with a byte-level BPE tokenizer")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    writer = GGUFWriter(path, config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, tokenizer, config)
    if (template := model / "chat_template.jinja").is_file():
        writer.add_chat_template(template.read_text())
    kind = _KINDS[dtype]
    rearranged: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    if config["model_type"] == "llama":
        rearranged = {
            "attn_q": lambda weight: _interleaved(weight, heads),
            "attn_k": lambda weight: _interleaved(weight, kv_heads),
        }
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            module, _, part = name.rpartition(".")
            if module in _OUTSIDE:
                target = _OUTSIDE[module]
            else:
                _, _, layer, inner = module.split(".", 3)
                target = f"blk.{layer}.{_NAMES[inner]}"
                if (rearrange := rearranged.get(_NAMES[inner])) is not None:
                    tensor = rearrange(tensor)
            values = tensor.float().numpy()
            if tensor.ndim == 1 or kind == GGMLQuantizationType.F32:
                writer.add_tensor(f"{target}.{part}", values)
            else:
                writer.add_tensor(f"{target}.{part}", quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows for rotary embeddings: llama.cpp rotates adjacent pairs of a head, transformers pairs from its two
    halves.
    """
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns).contiguous()


def _add_tokenizer(writer: GGUFWriter, tokenizer: dict, config: dict) -> None:
    tokens: list[str] = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    kinds = [TokenType.UNUSED] * len(tokens)
    for token, index in tokenizer["model"]["vocab"].items():
        tokens[index], kinds[index] = token, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")  # only ids are passed, so the tokenization of text does not matter
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
