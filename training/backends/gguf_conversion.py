"""Convert a GGUF file into a Hugging Face folder of safetensors, tensor by tensor.

  python -m training.backends.gguf_conversion GGUF FOLDER DTYPE [TEMPLATE]

Runs as a program of its own, so that its memory goes back to the system before training starts. The tokenizer gets the
chat template in the file TEMPLATE, or else the one in the GGUF's metadata, which must render tools. Exit code 2 and one
line on stderr: the file is damaged or of an unsupported kind.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize
from jinja2.exceptions import TemplateError
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    read_field,
)

from training.errors import BadInput

ARCHITECTURES = ("llama", "qwen2")
_SHARD_BYTES = 1_000_000_000
_SAME_DIRECTION = 0.9999
"""Cosine above which two embeddings count as the same."""
_BLOCK_NUMBERS = 2**24
"""Numbers dequantised at a time: 64 MB in float32."""
_PROBE: dict[str, Any] = {
    "type": "function",
    "function": {"name": "probe_of_the_template", "description": "", "parameters": {}},
}


def convert_gguf(gguf: Path, target: Path, dtype: torch.dtype, chat_template: str | None) -> None:
    """Write config, weights and tokenizer of `gguf` to `target`. Memory: about two shards of `_SHARD_BYTES`.

    Raises:
        BadInput: The file is damaged, its architecture or quantisation is unsupported, or its chat template knows no tools.
    """
    reader = _open(gguf)
    architecture = _require_supported(gguf, reader)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    _require_tools(gguf, tokenizer)

    model = _empty_model(gguf, dtype, tied=_head_is_embedding(reader))
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    if model.config.tie_word_embeddings:
        names.pop("output.weight", None)
    tensors = [tensor for tensor in reader.tensors if tensor.name in names]
    if missing := sorted(set(names) - {tensor.name for tensor in tensors}):
        raise BadInput(f"{gguf.name} lacks the tensor {missing[0]}: fetch the file again")

    _require_space(target.parent, sum(map(_elements, tensors)) * dtype.itemsize)
    target.mkdir()
    shards = list(_shards(tensors, dtype.itemsize))
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save_shard({names[tensor.name]: tensor for tensor in shard}, target / file, processor, dtype)
        weight_map |= dict.fromkeys(sorted(names[tensor.name] for tensor in shard), file)
    if len(shards) > 1:
        size = sum(map(_elements, tensors)) * dtype.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

    model.config.save_pretrained(target)
    # Generation stops where the chat template ends a turn.
    ends_turn = "<|im_end|>" if "<|im_end|>" in tokenizer.chat_template else tokenizer.eos_token
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(ends_turn)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.save_pretrained(target)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(target)
    [embeddings] = [tensor for tensor in tensors if tensor.name == "token_embd.weight"]
    _spell_out_untrained_marks(target / "tokenizer.json", embeddings)
    _have_text_name_the_last_token(target)


def _open(gguf: Path) -> GGUFReader:
    try:
        return GGUFReader(gguf)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise BadInput(f"{gguf.name} is no GGUF file or is cut off: fetch it again") from error


def _require_supported(gguf: Path, reader: GGUFReader) -> str:
    architecture = next(iter(read_field(reader, "general.architecture")), "none")
    if architecture not in ARCHITECTURES:
        raise BadInput(
            f"{gguf.name} is of the architecture {architecture!r}; supported: {', '.join(ARCHITECTURES)}. "
            "Take a model of one of these"
        )
    scaling = [name for name in reader.fields if ".rope.scaling." in name]
    if any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors) or (
        scaling and next(iter(read_field(reader, f"{architecture}.rope.scaling.type")), "none") != "none"
    ):
        raise BadInput(
            f"{gguf.name} scales its positions (RoPE scaling), which is not converted: take the model's safetensors"
        )
    for tensor in {tensor.tensor_type: tensor for tensor in reader.tensors}.values():
        try:
            dequantize(tensor.data[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise BadInput(
                f"{gguf.name} is quantised as {tensor.tensor_type.name}, which cannot be converted; "
                "take the file as F16, Q8_0, Q4_K_M or another of llama.cpp's Q types"
            ) from error
    return architecture


def _require_tools(gguf: Path, tokenizer: Any) -> None:
    message = [{"role": "user", "content": "Hello"}]
    try:
        with_tools, without = (
            tokenizer.apply_chat_template(message, tools=tools, tokenize=False) if tokenizer.chat_template else ""
            for tools in ([_PROBE], None)
        )
    except TemplateError:
        with_tools = without = ""
    # A template may abbreviate the names of tools, so that they cannot be looked for.
    if with_tools == without:
        what = "has a chat template without tools" if tokenizer.chat_template else "has no chat template"
        raise BadInput(
            f"{gguf.name} {what}: take an instruction-tuned model whose template lists tools, such as Qwen2.5-Instruct"
        )


def _spell_out_untrained_marks(tokenizer: Path, embeddings: ReaderTensor) -> None:
    """Have marks such as `<tool_call>` split into ordinary tokens if the model cannot tell their own tokens apart.

    Training leaves the embeddings of tokens that it never met at one common value. Qwen2.5-Coder never met those of
    tool calls. It can then neither read such a token nor write it rather than another one, and adapters leave embeddings and
    output head as they are.
    """
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    added = content["added_tokens"]
    numbers = np.array([token["id"] for token in added], dtype=np.int64)
    rows = dequantize(embeddings.data[numbers], embeddings.tensor_type)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    alike = (rows @ rows.T > _SAME_DIRECTION).sum(axis=1) > 1
    kept = [token for token, untrained in zip(added, alike, strict=True) if token["special"] or not untrained]
    if len(kept) < len(added):
        content["added_tokens"] = kept
        tokenizer.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _have_text_name_the_last_token(folder: Path) -> None:
    """Have the text of the last token encode as that token.

    ART finds the replies in a conversation by putting the last token of the vocabulary in their place. In a GGUF file
    that is often padding, which no text encodes to unless it is an added token.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    last = tokenizer.vocab_size - 1
    text = tokenizer.decode([last])
    if tokenizer.encode(text, add_special_tokens=False) == [last]:
        return
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"] += [{"id": last, "content": text, **flags}]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BadInput(
            f"no space left in {folder}: the converted weights take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        )


def _head_is_embedding(reader: GGUFReader) -> bool:
    found = {tensor.name: tensor for tensor in reader.tensors if tensor.name in ("output.weight", "token_embd.weight")}
    if "output.weight" not in found:
        return True
    head, embedding = found["output.weight"], found["token_embd.weight"]
    return head.tensor_type == embedding.tensor_type and np.array_equal(head.data, embedding.data)


def _empty_model(gguf: Path, dtype: torch.dtype, *, tied: bool) -> PreTrainedModel:
    """Return the model without weights.

    Its config names no quantisation, because `save_pretrained` would refuse that.
    """
    fields = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name).to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        fields.pop(name, None)
    fields |= {"dtype": str(dtype).removeprefix("torch."), "tie_word_embeddings": tied}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    model.config.architectures = [type(model).__name__]
    return model


def _shards(tensors: list[ReaderTensor], item_bytes: int) -> Iterator[list[ReaderTensor]]:
    shard: list[ReaderTensor] = []
    for tensor in tensors:
        if shard and sum(map(_elements, [*shard, tensor])) * item_bytes > _SHARD_BYTES:
            yield shard
            shard = []
        shard.append(tensor)
    yield shard


def _save_shard(tensors: dict[str, ReaderTensor], file: Path, processor: TensorProcessor, dtype: torch.dtype) -> None:
    weights = {name: _weights(tensor, processor, dtype) for name, tensor in tensors.items()}
    save_file(weights, file, metadata={"format": "pt"})


def _elements(tensor: ReaderTensor) -> int:
    return int(tensor.n_elements)


def _weights(tensor: ReaderTensor, processor: TensorProcessor, dtype: torch.dtype) -> torch.Tensor:
    """Dequantise block by block, so that no tensor is in memory in float32 as a whole."""
    shape = [int(size) for size in reversed(tensor.shape)]
    weights = torch.empty(shape, dtype=dtype)
    rows = max(1, _BLOCK_NUMBERS // shape[-1]) if len(shape) > 1 else shape[0]
    for first in range(0, shape[0], rows):
        block = np.require(dequantize(tensor.data[first : first + rows], tensor.tensor_type), requirements=["C", "W"])
        weights[first : first + rows] = torch.from_numpy(block)
    # Both architectures differ from transformers in the order of rows at most (Llama's rotary embeddings).
    order = processor.process(np.arange(shape[0]), tensor.name).weights
    return weights if np.array_equal(order, np.arange(shape[0])) else weights[torch.from_numpy(order.copy())]


def main() -> int:
    gguf, target, dtype, *template = sys.argv[1:]
    try:
        convert_gguf(
            Path(gguf), Path(target), getattr(torch, dtype), Path(template[0]).read_text() if template else None
        )
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
