"""The three backends, which sample tokens and apply gradients. All are ART backends, used through one interface."""

from __future__ import annotations

import importlib
import math
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from training.errors import BadInput

if TYPE_CHECKING:
    from art.backend import Backend

    from training.settings import TrainerSettings

_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Layers of a dense model that ART trains."""
_CHUNK = 1024
"""Tokens of which ART's local backend computes log-probabilities at a time. It pads episodes to whole chunks or to `max_context`."""
_VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def vllm_lora_rank(rank: int) -> int:
    """Return the smallest `max_lora_rank` of vLLM that admits adapters of this rank."""
    return next((allowed for allowed in _VLLM_LORA_RANKS if allowed >= rank), rank)


def require_backend(settings: TrainerSettings) -> str:
    """Describe the hardware that the configured backend would use.

    Raises `BadInput` if the backend cannot work here.
    """
    require_effect(settings)
    if settings.backend == "serverless":
        if not os.environ.get("WANDB_API_KEY"):
            raise BadInput("backend=serverless needs WANDB_API_KEY in the environment or in .env")
        return "W&B's servers"
    import torch

    if settings.backend == "torch":
        _require_device(settings.torch.device)
    if torch.cuda.is_available():
        if settings.backend == "local" and settings.max_steps_off_policy:
            ahead = f"max_steps_off_policy={settings.max_steps_off_policy} with backend=local"
            if (gpus := torch.cuda.device_count()) < 2:
                raise BadInput(
                    f"{ahead} needs two GPUs, one that samples while the other trains; here: {gpus}. Set it to 0"
                )
            if settings.warm_start_demonstrations:
                raise BadInput(
                    f"{ahead} has no warm start, since ART has none with a GPU for sampling alone: set demonstrations=0"
                )
        gpu = torch.cuda.get_device_properties(0)
        return f"{gpu.name} with {gpu.total_memory / 1e9:.0f} GB"
    if settings.backend == "local":
        raise BadInput("backend=local needs a CUDA GPU and requirements-gpu.txt; backend=torch needs neither")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU, {cores} {'core' if cores == 1 else 'cores'}"


def _require_device(name: str) -> None:
    import torch

    if name == "auto":
        return
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(
            f"torch.device={name}: this machine has no such device; auto takes a GPU if there is one"
        ) from error


def require_effect(settings: TrainerSettings) -> None:
    """Raise BadInput for a setting that has no effect with the configured backend, or that it cannot train with."""
    backend, default = settings.backend, type(settings).model_fields
    ignored = {
        "torch": {"serverless_url"},
        "local": {"serverless_url", "turn_credit", "lora_layers", "torch"},
        "serverless": {"turn_credit", "kl_penalty", "lora_layers", "torch", "lora_rank"},
    }
    for name in sorted(ignored[backend]):
        value, unset = getattr(settings, name), default[name].get_default(call_default_factory=True)
        if value == unset:
            continue
        if name == "torch":
            changed = next(part for part, there in value if there != getattr(unset, part))
            name, value, unset = f"torch.{changed}", getattr(value, changed), getattr(unset, changed)
        shown = "null" if unset is None else f"{unset:g}" if isinstance(unset, float) else unset
        raise BadInput(f"{name}={value}: backend={backend} would ignore it; set it to {shown}")
    if backend == "local" and settings.max_context % _CHUNK:
        raise BadInput(
            f"max_context={settings.max_context}: backend=local computes log-probabilities of {_CHUNK} tokens at a time; set it to a "
            f"multiple of {_CHUNK}, such as {math.ceil(settings.max_context / _CHUNK) * _CHUNK}"
        )
    if backend != "torch" or settings.max_steps_off_policy:
        return
    for name, clip in (("clip_low", settings.clip_low), ("clip_high", settings.clip_high)):
        if clip is not None:
            raise BadInput(
                f"{name}={clip:g} has no effect: each update learns from rollouts of the policy that it changes, so the ratio of "
                f"probabilities is 1; leave {name} out, or set max_steps_off_policy"
            )


def update_arguments(settings: TrainerSettings) -> dict[str, Any]:
    """Return the arguments of the backend's `train` that configure the loss (`art.loss`)."""
    arguments: dict[str, Any] = {
        "scale_rewards": settings.scale_rewards == "group",
        "advantage_balance": settings.advantage_balance,
        "epsilon": settings.clip_low,
        "epsilon_high": settings.clip_high,
    }
    if settings.backend == "serverless":
        return arguments | {"ppo": settings.policy_loss == "ppo"}
    return arguments | {"loss_fn": settings.policy_loss, "kl_penalty_coef": settings.kl_penalty}


def free_on_gpus() -> list[int]:
    """Return the free bytes of each GPU."""
    import torch

    return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]


def gpus_occupied(settings: TrainerSettings) -> int:
    """Return the number of GPUs that a run occupies. The local backend counts as one even where no GPU is present."""
    if settings.backend == "local":
        return 2 if settings.max_steps_off_policy else 1
    if settings.backend == "serverless":
        return 0
    import torch

    return int(torch.cuda.is_available())


class GpuMemory(NamedTuple):
    """Used and total bytes of the GPU that holds the models, all processes included."""

    used: int
    total: int


def gpu_memory() -> GpuMemory | None:
    """Return the memory of the first GPU; `None` without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return GpuMemory(total - free, total)


def open_backend(settings: TrainerSettings, path: Path) -> Backend:
    """Open the configured backend with its files under `path`. Imports only what that backend needs.

    Raises:
        BadInput: when the backend cannot work on this machine.
    """
    require_backend(settings)
    if settings.backend == "torch":
        from training.backends.torch import TorchBackend, TorchSettings

        return TorchBackend(
            path=str(path),
            settings=TorchSettings(
                **settings.torch.model_dump(),
                lora_rank=settings.lora_rank,
                lora_layers=settings.lora_layers,
                seed=settings.seed,
                turn_credit=1.0 if settings.turn_credit is None else settings.turn_credit,
            ),
        )
    if settings.backend == "local":
        from art.local import LocalBackend

        # ART installs vLLM with `uv`, which is next to this interpreter, also in an environment that is not activated.
        if shutil.which("uv") is None:
            os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        _name_layers_without_megatron()
        return LocalBackend(path=str(path))
    from training.backends.serverless import PullingServerlessBackend

    return PullingServerlessBackend(base_url=settings.serverless_url)


def _name_layers_without_megatron() -> None:
    """Let ART configure a model where Megatron is not installed.

    ART reads the names of the layers to train from a module that imports Megatron, which its extra `backend` does not install.
    """
    module = "art.megatron.model_support"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "megatron":
            raise
        names = ModuleType(module)
        names.__dict__["default_target_modules_for_model"] = lambda base_model, **_: list(_LAYERS)
        sys.modules[module] = names
