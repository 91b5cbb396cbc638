"""Who serves tokens and who applies gradients. All three are ART backends; the trainer cannot tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import BadInput
from training.settings import TrainerSettings

if TYPE_CHECKING:
    from art.backend import Backend


def open_backend(settings: TrainerSettings, path: Path) -> Backend:
    """The configured backend, keeping its files under `path`. Imports only what that backend needs.

    Raises:
        BadInput: when the backend cannot work on this machine.
    """
    if settings.backend == "torch":
        from training.backends.torch import TorchBackend, TorchSettings

        return TorchBackend(
            path=str(path),
            settings=TorchSettings(
                lora_rank=settings.lora_rank,
                lora_layers=settings.lora_layers,
                seed=settings.seed,
            ),
        )
    if settings.backend == "local":
        import torch

        if not torch.cuda.is_available():
            raise BadInput("backend=local needs a CUDA GPU and requirements-gpu.txt; backend=torch runs without")
        from art.local import LocalBackend

        return LocalBackend(path=str(path))
    import os

    if not os.environ.get("WANDB_API_KEY"):
        raise BadInput("backend=serverless needs WANDB_API_KEY in the environment or in .env")
    from art.serverless.backend import ServerlessBackend

    return ServerlessBackend()
