"""A training run in a process of its own that is killed, or otherwise hurt, at a chosen point.

`python injection.py RUN_FOLDER BASE_MODEL POINT` trains the tiny model on the guessing game; without a POINT to its end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import art

import training.loop.trainer
from tests.training.guessing_game import GuessingGame
from training.backends.torch.adapter_trainer import AdapterTrainer
from training.backends.torch.network import PolicyNetwork
from training.loop.trainer import TrainingRun
from training.loop.validation import Validator
from training.record.progress import Progress
from training.session import run_training
from training.settings import TrainerSettings
from training.task import Policy

SETTINGS = TrainerSettings(
    demonstrations=4,
    max_steps=3,
    groups_per_step=1,
    max_extra_groups=0,
    rollouts_per_group=3,
    validate_every=0,
    lora_rank=2,
    lora_layers=1,
    max_context=1024,
)
VALIDATED = SETTINGS.model_copy(update={"validate_every": 1, "validation_questions": 1, "validation_metric": "reward"})
MAX_TOKENS = 8
KILLED_STEP = 2
"""The GRPO step that is under way at the points after the warm start."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(times: int, of: type | Any, name: str, act: Callable[..., Any]) -> None:
    """From its `times`-th call on, `of.name` is `act(original, *arguments)`."""
    original, calls = getattr(of, name), 0

    def replaced(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return act(original, *arguments, **named) if calls >= times else original(*arguments, **named)

    setattr(of, name, replaced)


def die_after(original: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    original(*arguments, **named)
    die()


def die_before(*_: Any, **__: Any) -> None:
    die()


def die_within_the_line(original: Any, path: Path, row: Any) -> None:
    line = row.model_dump_json()
    with path.open("a") as file:
        file.write(line[: len(line) // 2])
        file.flush()
    die()


POINTS: dict[str, Callable[[], None]] = {
    "warm start": lambda: on_call(2, AdapterTrainer, "sft_step", die_after),
    "rollout": lambda: on_call(5, GuessingGame, "rollout", die_before),
    "update": lambda: on_call(KILLED_STEP, AdapterTrainer, "policy_step", die_after),
    # The warm start saves its adapter twice.
    "checkpoint": lambda: on_call(KILLED_STEP + 2, PolicyNetwork, "save_adapter", die_after),
    "between checkpoint and history row": lambda: on_call(
        KILLED_STEP + 1, training.loop.trainer, "append_row", die_before
    ),
    "history row": lambda: on_call(KILLED_STEP + 1, training.loop.trainer, "append_row", die_within_the_line),
}
VALIDATED_POINTS: dict[str, Callable[[], None]] = {
    "first validation": lambda: on_call(1, Validator, "validate", die_before),
}
"""Points that only a run with the settings `VALIDATED` reaches."""


def settings_at(point: str) -> TrainerSettings:
    """Return the settings of a run that reaches `point`."""
    return VALIDATED if point in VALIDATED_POINTS else SETTINGS


class Varied(GuessingGame):
    """Rewards that differ within every group, so that every step trains: the tiny model knows nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.cycle(range(SETTINGS.rollouts_per_group))

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        number = next(self.numbers) if policy.temperature else 0
        trajectory = await super().rollout(policy, scenario)
        trajectory.reward = float(number)
        return trajectory


def train(
    folder: Path,
    base: Path | str,
    settings: TrainerSettings = SETTINGS,
    progress: Progress | None = None,
    task: Any = None,
    max_tokens: int = MAX_TOKENS,
) -> TrainingRun:
    return asyncio.run(
        run_training(
            task or Varied(),
            base_model=str(base),
            settings=settings,
            max_tokens=max_tokens,
            run_folder=folder,
            progress=progress,
        )
    )


def train_until_killed(folder: Path, base: Path, point: str) -> None:
    """In a child process: the points patch this process's classes."""
    (POINTS | VALIDATED_POINTS)[point]()
    train(folder, base, settings_at(point))
