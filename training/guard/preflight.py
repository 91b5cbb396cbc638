"""Preflight checks of a run's external requirements, one line each."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training.backends import free_on_gpus, require_backend, require_effect
from training.backends.base_model import ModelAccess, find_base_model, writes_compact_calls
from training.backends.memory import available_memory, gpu_parts, require_memory
from training.errors import BadInput
from training.guard.stopping import require_stop_rules
from training.llm_client import TEST_MESSAGES, TEST_SECONDS
from training.scoring.ruler import judge_name, litellm_parameters
from training.scoring.scorer import require_scoring
from training.settings import TrainerSettings

_LEAST_MEMORY = 1e9
"""Bytes of main memory that a run on a CPU takes in addition to the weights. No run succeeded with less."""
_LEAST_DISK = 1e9


@dataclass(frozen=True)
class RunCheck:
    """A requirement of a run. `found` says what is there, or what is wrong and what to do."""

    name: str
    ok: bool
    found: str

    def __str__(self) -> str:
        return f"{self.name:<14} {'ok' if self.ok else 'missing':<8} {self.found}"


def check_run_elsewhere(settings: TrainerSettings) -> Iterator[RunCheck]:
    """Check what can be checked of a run on another machine: its settings."""
    yield _passed("stop rules", "consistent", lambda: require_stop_rules(settings))
    yield _passed("rewards", _rewards(settings), lambda: require_scoring(settings, keys=False))
    yield _passed("backend", settings.backend, lambda: require_effect(settings))
    later = "keys, GPU, memory, disk, base model and judge are checked in the pod that trains, before it begins"
    yield RunCheck("elsewhere", True, later)


def check_run(settings: TrainerSettings, base_model: str, *, models: Path, runs: Path) -> Iterator[RunCheck]:
    """Yield the result of each check as it finishes: rules, rewards, backend, base model, memory, disk, and one short
    request to the judge.
    """
    yield _passed("stop rules", "consistent", lambda: require_stop_rules(settings))
    rewards = _passed("rewards", _rewards(settings), lambda: require_scoring(settings))
    yield rewards
    yield _checked("backend", lambda: _backend(settings))
    access: list[ModelAccess] = []

    def model() -> str:
        if settings.backend == "serverless":
            from training.backends.serverless import remote_base_model

            remote_base_model(base_model)
        if settings.backend == "local" and writes_compact_calls(base_model):
            raise BadInput(
                f"base_model: vLLM does not parse the compact tool calls of {base_model}; set backend=torch, or name a folder with its "
                "files and the template training/backends/chat_templates/chatml_hermes.jinja as chat_template.jinja"
            )
        access.append(find_base_model(base_model, models))
        return f"{base_model} {access[0].found}"

    yield _checked("base model", model)
    if access:
        yield _checked("memory", lambda: _memory(settings, base_model, access[0]))
    yield _checked("disk", lambda: _disk(runs))
    if rewards.ok and settings.asks_judge:
        yield _checked("judge", lambda: asyncio.run(ask_judge(settings)))


def require_ready(settings: TrainerSettings, base_model: str, *, models: Path, runs: Path) -> None:
    """Raise BadInput for the first failed check."""
    for check in check_run(settings, base_model, models=models, runs=runs):
        if not check.ok:
            raise BadInput(check.found)


async def ask_judge(settings: TrainerSettings) -> str:
    """Send the judge a one-word request. Raises BadInput if it does not answer."""
    import litellm
    from openai import OpenAIError

    parameters = {**litellm_parameters(settings), "timeout": TEST_SECONDS}
    started = time.monotonic()
    try:
        async with asyncio.timeout(TEST_SECONDS):
            await litellm.acompletion(model=settings.ruler_model, messages=TEST_MESSAGES, **parameters)
    except (OpenAIError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:200] or f"no reply within {TEST_SECONDS:g} s"
        raise BadInput(f"{judge_name(settings)} cannot be asked: {reason}") from error
    return f"{judge_name(settings)} answers in {time.monotonic() - started:.1f} s"


def _checked(name: str, look: Callable[[], str]) -> RunCheck:
    try:
        return RunCheck(name, True, look())
    except BadInput as error:
        return RunCheck(name, False, " ".join(str(error).split()))


def _passed(name: str, found: str, require: Callable[[], None]) -> RunCheck:
    """Return a check that says `found` unless `require` raises BadInput."""

    def look() -> str:
        require()
        return found

    return _checked(name, look)


def _rewards(settings: TrainerSettings) -> str:
    weights = settings.reward_weights
    terms = list(weights) if len(weights) == 1 else [f"{weight:g} x {source}" for source, weight in weights.items()]
    return " + ".join(terms)


def _backend(settings: TrainerSettings) -> str:
    found = require_backend(settings)
    if settings.backend == "local" and settings.max_steps_off_policy:
        from training.backends.local import sampling_gpu

        sampling_gpu()
    return f"{settings.backend} on {found}"


def _memory(settings: TrainerSettings, base_model: str, access: ModelAccess) -> str:
    if settings.backend == "serverless":
        return "on W&B's servers"
    gpus = free_on_gpus()
    parameters = access.parameters or (access.weight_bytes or 0) / 2  # files of unknown content: in bfloat16
    if settings.backend == "torch" and not gpus:
        free = available_memory()
        needed = require_memory(base_model, int(parameters), settings.torch, free=free, reserved=_LEAST_MEMORY)
        return f"{free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed to start, training takes more"
    if not parameters:
        return f"not counted: the size of {base_model} is not known before it is fetched or converted"
    lines = []
    for number, parts in enumerate(gpu_parts(parameters, settings)):
        needed = sum(parts.values())
        line = f"{needed / 1e9:.1f} GB needed ({', '.join(f'{name} {size / 1e9:.1f}' for name, size in parts.items())})"
        if number >= len(gpus):
            lines.append(f"GPU {number}, which is not here: {line}")
            continue
        if gpus[number] < needed:
            raise BadInput(
                f"GPU {number} has {gpus[number] / 1e9:.1f} GB free, {line}: take a smaller base_model, or a larger GPU"
            )
        lines.append(f"GPU {number}: {gpus[number] / 1e9:.1f} GB free, {line}")
    return "; ".join(lines)


def _disk(folder: Path) -> str:
    existing = next(parent for parent in (folder, *folder.resolve().parents) if parent.is_dir())
    free = shutil.disk_usage(existing).free
    if free < _LEAST_DISK:
        raise BadInput(
            f"{free / 1e9:.1f} GB are free where runs are kept ({existing}); {_LEAST_DISK / 1e9:.0f} GB are needed"
        )
    return f"{free / 1e9:.0f} GB free"
