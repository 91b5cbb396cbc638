"""Settings of the torch backend."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

UNFINISHED_SFT = "unfinished_sft"
"""Folder, next to a run's checkpoints, of a fine-tuning whose row is not in the history yet."""


class TorchEngineSettings(BaseModel):
    """Speed and memory of the torch backend. The defaults suit a model of 135M parameters on two CPU cores."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    device: str = "auto"
    """`auto` takes CUDA when there is one; otherwise a torch device such as `cpu` or `cuda:1`."""

    # Memory and speed.
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; `None` takes one per physical core that this process may use."""
    matmul_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the layers' matrix products on a CPU, including those of the adapter and of its gradients. bfloat16 is
    about twice as fast; `auto` takes it where the processor has instructions for it. The adapter itself, the sums of its
    gradients over micro-batches and everything else are float32."""
    base_weights: Literal["auto", "bfloat16", "int8"] = "auto"
    """How base weights are kept. `auto` keeps them as their products need them, in up to two copies, which is fastest.
    `bfloat16` and `int8` (one scale per row) keep each once, in 2 bytes or 1, and convert blocks of them in every product;
    the adapter is then never merged. int8 changes the weights a little: docs/training.md."""
    kv_cache_tokens: int = Field(default=20_480, ge=256)
    """Size of the cache of keys and values in tokens, shared by running and finished conversations."""
    step_tokens: int = Field(default=512, ge=16)
    """Maximum tokens per engine step. Longer prompts are computed in chunks, so that other sequences keep decoding."""
    max_running: int = Field(default=48, ge=1)
    """Maximum number of conversations computed at the same time."""
    micro_batch_tokens: int = Field(default=2048, ge=64)
    """Unique tokens per backward pass of an update. Shared prefixes are computed once per pass, so larger passes save work."""
    recorded_tokens: int | None = Field(default=None, ge=64)
    """Tokens whose activations a backward pass keeps, which bounds its memory. Larger passes recompute their lower layers.
    `None` means 896 with products in float32 and 2,048 in bfloat16, where each token needs half the memory."""

    lora_plus_ratio: float = Field(default=8.0, ge=1, le=64)
    """Learning rate of the adapter's matrices B as a multiple of the configured one, which the matrices A have (LoRA+,
    Hayou et al. 2024). B starts at zero and needs larger steps than A."""


class TorchSettings(TorchEngineSettings):
    """All settings of the torch backend."""

    lora_rank: int = Field(default=16, ge=1, le=512)
    lora_layers: int | None = Field(default=None, ge=1)
    """Number of adapted layers from the top; `None` adapts all. Back-propagation stops below them."""
    seed: int = 0
    """Initialises the adapter and unseeded sampling."""
    turn_credit: float = Field(default=0.0, ge=0, le=10)
    """Weight of the advantage per turn that is added to the trajectory's (`training.scoring.turn_credit`)."""
