"""Compare log-probabilities of the torch backend with those of transformers, by architecture and prompt length.

  python -m benchmarks.backend_exactness                 Llama and Qwen2, prompts of 50, 600, 2,000 and 6,000 tokens
  python -m benchmarks.backend_exactness --lengths 50    a few seconds

Models are random, with 4 layers and 3 query heads per key head. Products are in float32. Weights are kept as they are, in
8 bits and in bfloat16, and transformers computes with the same converted numbers. Figures are the largest absolute
difference of 8 sampled tokens. The last line is JSON. The exit code is 1 if a difference exceeds 1e-4.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from benchmarks.gpu_check.exactness import FLOAT32_TOLERANCE, reference_logprobs
from benchmarks.gpu_check.workload import sample_of
from benchmarks.output import progress, show
from training.backends.torch import TorchSettings
from training.backends.torch.compact_weight import CompactEmbedding, CompactWeight
from training.backends.torch.engine import Engine, SamplingParams
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork

LENGTHS = (50, 600, 2_000, 6_000)
KEPT: tuple[Literal["auto", "int8", "bfloat16"], ...] = ("auto", "int8", "bfloat16")
_REPLY = 8
_VOCABULARY = 512
_SIZES: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8_192,
    "initializer_range": 0.1,  # distributions far from uniform
    "tie_word_embeddings": False,
}


def main() -> int:
    """Print the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of the prompts")
    lengths = parser.parse_args().lengths
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ("llama", "qwen2"):
            for kept in KEPT:
                progress(f"{architecture}, base_weights {kept}")
                place = Path(folder) / f"{architecture}-{kept}"
                for case, found in compare(place, architecture, kept, lengths).items():
                    figures[f"{architecture}, {kept}: {case}"] = found
    columns = ("", *(f"{length:,} tokens" for length in lengths))
    show(
        "Largest difference from transformers",
        columns,
        [(name, *(f"{value:.1e}" for value in found)) for name, found in figures.items()],
    )
    largest = max(value for found in figures.values() for value in found)
    print(json.dumps({"lengths": list(lengths), "largest": largest, "tolerance": FLOAT32_TOLERANCE, **figures}))
    return int(largest > FLOAT32_TOLERANCE)


def compare(
    folder: Path, architecture: str, kept: Literal["auto", "int8", "bfloat16"], lengths: Sequence[int]
) -> dict[str, list[float]]:
    """Return the largest difference per prompt length for the base, an adapter, and a second turn that reuses the first."""
    save_random_model(folder / "model", architecture)
    settings = TorchSettings(
        device="cpu", matmul_dtype="float32", base_weights=kept, kv_cache_tokens=4 * max(lengths) + 4096
    )
    network = PolicyNetwork(folder / "model", settings)
    network.end_ids = frozenset()  # replies have a fixed length
    adapter = _random_adapter(network)
    network.save_adapter(adapter, folder / "adapter")
    reference = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    if kept != "auto":
        reference.load_state_dict(_dequantised(network), strict=False)
    adapted = PeftModel.from_pretrained(_copy(reference), folder / "adapter").eval()
    found: dict[str, list[float]] = {"base": [], "with an adapter": [], "prefix reused": []}
    engine = Engine(network, settings)
    try:
        for length in lengths:
            chance = random.Random(length)
            prompt = [chance.randrange(8, _VOCABULARY) for _ in range(length)]
            first, difference = _difference(engine, prompt, None, reference)
            found["base"].append(difference)
            found["with an adapter"].append(_difference(engine, prompt, adapter, adapted)[1])
            _, difference = _difference(engine, [*prompt, *first, 5, 6, 7], None, reference, reused=length)
            found["prefix reused"].append(difference)
    finally:
        engine.close()
    return found


def save_random_model(folder: Path, architecture: str) -> None:
    """Write a random model without a tokenizer, whose biases are not zero."""
    torch.manual_seed(0)
    model: torch.nn.Module = (
        LlamaForCausalLM(LlamaConfig(**_SIZES)) if architecture == "llama" else Qwen2ForCausalLM(Qwen2Config(**_SIZES))
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)


def _difference(
    engine: Engine, prompt: list[int], adapter: LoraAdapter | None, model: torch.nn.Module, *, reused: int = 0
) -> tuple[list[int], float]:
    """Return a reply and the largest difference of its log-probabilities. It must reuse at least `reused` tokens."""
    reply = engine.submit(prompt, SamplingParams(max_tokens=_REPLY, seed=0), adapter).result()
    assert reply.cached_tokens >= reused, f"{reply.cached_tokens} of {reused} tokens were reused"
    expected = reference_logprobs(model, sample_of(prompt, reply))
    return reply.token_ids, max(abs(ours - theirs) for ours, theirs in zip(reply.logprobs, expected, strict=True))


def _dequantised(network: PolicyNetwork) -> dict[str, torch.Tensor]:
    """Return the numbers that `network` computes with, by the names of transformers."""
    embedding, head = network.body.embed_tokens, network.head
    assert isinstance(embedding, CompactEmbedding)
    assert isinstance(head, CompactWeight)
    ids = torch.arange(_VOCABULARY)
    weights = {f"{name}.weight": linear.weight for name, linear in network.linears.items()}
    return weights | {"model.embed_tokens.weight": embedding(ids), "lm_head.weight": head.dense()}


def _copy(model: torch.nn.Module) -> torch.nn.Module:
    copied = type(model)(model.config)
    copied.load_state_dict(model.state_dict())
    return copied.float()


def _random_adapter(network: PolicyNetwork) -> LoraAdapter:
    adapter = network.new_adapter(16, 32.0, None, seed=0)
    generator = torch.Generator().manual_seed(1)
    for _, b in adapter.matrices.values():
        b.copy_(torch.randn(b.shape, generator=generator) * 0.02)
    adapter.key = "random"
    return adapter


if __name__ == "__main__":
    raise SystemExit(main())
