"""Settings of the torch backend."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TorchEngineSettings(BaseModel):
    """Speed and memory of the torch backend. The defaults suit a model of 135M parameters on two CPU cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = "auto"
    """`auto` takes CUDA when there is one; otherwise a torch device such as `cpu` or `cuda:1`."""
    lora_alpha: float = Field(default=32.0, gt=0)

    # Memory and speed.
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; `None` takes one per physical core that this process may use."""
    matmul_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the layers' matrix products on a CPU, about twice as fast in bfloat16. `auto` takes that where the
    processor has instructions for it. Everything else, the adapter and its gradients too, is float32."""
    kv_cache_tokens: int = Field(default=20_480, ge=256)
    """Tokens whose keys and values are kept, for running and for finished conversations together."""
    step_tokens: int = Field(default=512, ge=16)
    """Most tokens computed in one engine step; long prompts are cut into chunks so that others keep decoding."""
    draft_tokens: int = Field(default=12, ge=0)
    """Most tokens that are guessed to follow the next one and computed with it (`NgramSpeculation`); 0 guesses none."""
    max_running: int = Field(default=48, ge=1)
    """Most conversations that are computed at the same time."""
    micro_batch_tokens: int = Field(default=2048, ge=64)
    """Unique tokens per backward pass of an update. What its conversations share is computed once: the more of a group fits,
    the more is shared."""
    recorded_tokens: int | None = Field(default=None, ge=64)
    """Tokens whose activations are kept for a backward pass: the bound on its memory. Of a larger one the lower layers are
    computed twice. `None` takes 896 with products in float32 and 2,048 in bfloat16, where each needs half the memory."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm before the optimizer's step (AdamW)."""


class TorchSettings(TorchEngineSettings):
    """How the torch backend serves and trains."""

    lora_rank: int = Field(default=16, ge=1, le=512)
    lora_layers: int | None = Field(default=None, ge=1)
    """Adapt this many layers from the top (all of them when `None`); nothing below is back-propagated through."""
    seed: int = 0
    """Initialises the adapter and unseeded sampling."""
    turn_credit: float = Field(default=0.0, ge=0, le=10)
    """Weight of a turn's own advantage, which is added to that of its trajectory (`training.turn_credit`)."""
