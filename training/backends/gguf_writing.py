"""Write a model folder of transformers as the GGUF file that llama.cpp and Ollama read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import (
    GGML_QUANT_SIZES,
    GGML_QUANT_VERSION,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    get_tensor_name_map,
    quants,
)
from safetensors.torch import load_file

from training.errors import BadInput

_ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}
_KINDS = {
    "float32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "bfloat16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "float16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_gguf(model: Path, path: Path, dtype: str) -> None:
    """Write weights in `dtype` (a key of `_KINDS`), norms and biases in float32, tokenizer and chat template.

    Rows whose length is no multiple of a quantisation's block stay float16. Memory: the written file and one shard of `model`.

    Raises:
        BadInput: llama.cpp would compute another model or read other tokens, or a weight is beyond float16.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    _require_supported(model, config)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    kind, file_type = _KINDS[dtype]
    writer = GGUFWriter(path, config["model_type"])
    writer.add_file_type(file_type)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(_rope(config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, model, tokenizer, config)
    if (template := model / "chat_template.jinja").is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))

    names = get_tensor_name_map(_ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    rotated = {"attn_q": heads, "attn_k": kv_heads} if config["model_type"] == "llama" else {}
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            target = names.get_name(name, (".weight", ".bias"))
            if target is None:
                raise BadInput(f"{model.name}: GGUF has no place for the tensor {name}")
            if of_heads := rotated.get(target.split(".")[-2]):
                tensor = _interleaved(tensor, of_heads)
            _add_tensor(writer, target, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _require_supported(model: Path, config: dict[str, Any]) -> None:
    if config["model_type"] not in _ARCHITECTURES:
        raise BadInput(
            f"{model.name} is of the architecture {config['model_type']}; written as GGUF: {', '.join(_ARCHITECTURES)}"
        )
    if (scaling := _rope(config).get("rope_type", "default")) != "default":
        raise BadInput(f"{model.name} scales its positions ({scaling}), which is not written as GGUF")


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}


def _add_tensor(writer: GGUFWriter, name: str, tensor: torch.Tensor, kind: GGMLQuantizationType) -> None:
    values = tensor.float().numpy()
    if tensor.ndim == 1 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
        return
    if tensor.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F16
    if kind == GGMLQuantizationType.F16 and not tensor.to(torch.float16).isfinite().all():
        raise BadInput(f"{name} has values beyond float16")
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)


def _interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows for rotary embeddings: llama.cpp rotates adjacent pairs of a head, transformers pairs from its two
    halves.
    """
    by_head = tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return by_head.transpose(1, 2).reshape(tensor.shape).contiguous()


def _add_tokenizer(writer: GGUFWriter, model: Path, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    tokens = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    kinds = [TokenType.UNUSED] * len(tokens)
    splitting = _splitting(model, tokenizer)
    for token, index in tokenizer["model"]["vocab"].items():
        tokens[index], kinds[index] = token, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)  # prompts begin as the chat template writes them
    for name, add in (("bos", writer.add_bos_token_id), ("pad", writer.add_pad_token_id)):
        if (token_id := config.get(f"{name}_token_id")) is not None:
            add(token_id)
    writer.add_eos_token_id(_end_of_turn(model, config))


def _splitting(model: Path, tokenizer: dict[str, Any]) -> str:
    """Return llama.cpp's name of how the tokenizer splits text before it merges bytes."""
    if tokenizer["model"]["type"] == "BPE" and not tokenizer["model"].get("byte_fallback"):
        first = tokenizer["pre_tokenizer"] or {}
        steps = [_step(part) for part in first.get("pretokenizers", [first])]
        for name, expected in (
            ("gpt-2", ["ByteLevel"]),
            ("smollm", ["Digits", "ByteLevel"]),
            ("qwen2", [_QWEN2_SPLIT, "bytes"]),
        ):
            if steps == expected:
                return name
    raise BadInput(
        f"{model.name}: llama.cpp is not known to split text as its tokenizer does; "
        "written as GGUF: byte-level BPE as in GPT-2, SmolLM2 and Qwen2"
    )


def _step(part: dict[str, Any]) -> str | None:
    """Return what a pre-tokenizer does, as far as `_splitting` knows it."""
    if part.get("type") == "ByteLevel" and not part["add_prefix_space"]:
        return "ByteLevel" if part["use_regex"] else "bytes"
    if part.get("type") == "Digits" and part["individual_digits"]:
        return "Digits"
    if part.get("type") == "Split" and part["behavior"] == "Isolated" and not part["invert"]:
        return part["pattern"].get("Regex")
    return None


def _end_of_turn(model: Path, config: dict[str, Any]) -> int:
    """Return the token that ends a reply: that of the generation, which may differ from the end of a text."""
    generation = model / "generation_config.json"
    found = json.loads(generation.read_text(encoding="utf-8")) if generation.is_file() else {}
    end = found.get("eos_token_id", config["eos_token_id"])
    return int(end[0] if isinstance(end, list) else end)
