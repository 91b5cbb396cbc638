"""An ART backend on plain PyTorch: serves a policy over HTTP and trains its LoRA adapter, on CPU or CUDA.

The pieces, from the bottom up: `attention` (ragged batches), `lora` (adapters and their files), `network` (the language
model), `scheduler` (admission, prefix reuse, eviction), `engine` (continuous batching), `chat_format` (chat messages to
token ids and back), `server` (OpenAI-compatible HTTP), `adapter_trainer` (gradients over a token tree), `service` and
`backend` (ART's seam).

Heavy imports happen on first use of a name, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from training.backends.torch.settings import TorchSettings

if TYPE_CHECKING:
    from training.backends.torch.backend import TorchBackend
    from training.backends.torch.server import PolicyServer

__all__ = ["PolicyServer", "TorchBackend", "TorchSettings"]


def __getattr__(name: str) -> Any:
    if name == "TorchBackend":
        from training.backends.torch.backend import TorchBackend

        return TorchBackend
    if name == "PolicyServer":
        from training.backends.torch.server import PolicyServer

        return PolicyServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
