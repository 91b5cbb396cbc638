"""A toy task, and a model and a backend that only count: runs of the trainer in milliseconds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import art

from training.loop.trainer import Trainer, TrainingRun
from training.record.history import StepRecord
from training.record.progress import Progress
from training.settings import TrainerSettings
from training.task import Policy

SKILL = {0: 0.2, 1: 0.3, 2: 0.4, 3: 0.7, 4: 0.95, 5: 0.6, 6: 0.5, 7: 0.4, 8: 0.4, 9: 0.4}
"""Checkpoint -> share of the questions that the policy answers."""


class Killed(BaseException):
    """What a kill looks like from inside."""


class ToyTask:
    """Questions 0 to 39; whether a policy answers one depends on the question and on the checkpoint."""

    name = "toy"

    def __init__(self, die: Any = None) -> None:
        self.demonstrated: list[int] = []
        self.asked: list[tuple[str, float, int]] = []
        self.cuts: set[tuple[float, float]] = set()
        self.die = die or (lambda policy, number: False)
        self.times: Counter[tuple[str, int]] = Counter()

    def train_scenarios(self) -> list[int]:
        return list(range(40))

    def demonstrations(self, scenarios: list[int], limit: int) -> list[art.Trajectory]:
        self.demonstrated = list(scenarios[:limit])
        return [art.Trajectory(messages_and_choices=[], reward=0.0, metadata={"of": str(n)}) for n in self.demonstrated]

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        self.asked.append((policy.model, policy.temperature, scenario))
        self.cuts.add((policy.top_p, policy.min_p))
        if self.die(policy, len(self.asked)):
            raise Killed
        skill = SKILL[int(policy.model.partition("@")[2])]
        if (
            policy.temperature
        ):  # of four samples the third is wrong and the fourth right, so that every step has something to learn
            self.times[policy.model, scenario] += 1
            correct = self.times[policy.model, scenario] % 4 / 4 < min(skill, 0.7)
        else:
            correct = random.Random(f"{policy.model} {scenario}").random() < skill
        return art.Trajectory(
            messages_and_choices=[],
            reward=float(correct),
            metrics={"correct": correct, "turns": 1, "sampled_tokens": 10},
            metadata={"scenario_id": str(scenario)},
        )

    def number_in_group(self, policy: Policy, scenario: int) -> int:
        """The number of the last sampled rollout of the scenario in its group of four."""
        return (self.times[policy.model, scenario] - 1) % 4


class CountingModel:
    """What the trainer uses of `art.TrainableModel`; its step is its newest checkpoint."""

    name, project = "toy", "tests"
    inference_base_url, inference_api_key = "http://nowhere", None

    def __init__(self, folder: Path) -> None:
        self.base_path = str(folder)
        self.checkpoints = folder / "tests" / "models" / "toy" / "checkpoints"
        self.logged: list[tuple[str, int]] = []

    async def register(self, backend: Any) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    def step(self) -> int:
        return max((int(folder.name) for folder in self.checkpoints.iterdir()), default=0)

    async def get_step(self) -> int:
        return self.step()

    def get_inference_name(self) -> str:
        return f"toy@{self.step()}"

    async def log(self, groups: Any = None, *, split: str, step: int, metrics: Any = None) -> None:
        self.logged.append((split, step))

    def new_checkpoint(self) -> None:
        (self.checkpoints / f"{self.step() + 1:04d}").mkdir()


class CountingBackend:
    def __init__(self, model: CountingModel) -> None:
        self.model = model
        self.learnt_from: list[art.Trajectory] = []

    async def train(self, model: Any, groups: Any, *, learning_rate: float, **arguments: Any) -> SimpleNamespace:
        self.arguments = arguments
        self.model.new_checkpoint()
        return SimpleNamespace(metrics={"loss/train": 0.1})

    async def _train_sft(self, model: Any, trajectories: list[art.Trajectory], config: Any, dev_config: Any) -> Any:
        self.learnt_from = trajectories
        yield {"loss/train": 1.0}
        self.model.new_checkpoint()


Backend = TypeVar("Backend", bound=CountingBackend)


class RecordedProgress(Progress):
    """Keeps the events of a run. `stages` has the name, the total and the finished parts of each stage."""

    def __init__(self) -> None:
        self.rows: list[StepRecord] = []
        self.reasons: list[str] = []
        self.warnings: list[str] = []
        self.stages: list[list[Any]] = []

    def stage(self, description: str, total: int) -> None:
        self.stages.append([description, total, 0])

    def extend(self, parts: int) -> None:
        self.stages[-1][1] += parts

    def advance(self) -> None:
        self.stages[-1][2] += 1

    def step(self, row: StepRecord) -> None:
        self.rows.append(row)

    def stopped(self, reason: str, best: str = "") -> None:
        self.reasons.append("; ".join(filter(None, (reason, best))))

    def warning(self, sentence: str) -> None:
        self.warnings.append(sentence)


def settings(**changes: Any) -> TrainerSettings:
    values = {"max_steps": 6, "groups_per_step": 3, "rollouts_per_group": 4, "demonstrations": 5}
    plain = {
        "probe_rollouts": None,
        "max_extra_groups": 0,
        "min_reward_std": 0.0,
        "advantage_balance": 0.0,
        "learning_rate_schedule": "constant",
    }
    return TrainerSettings(
        **{**values, **plain, "scale_rewards": "group", "validate_every": 0, "validation_questions": 10, **changes}
    )


def train(
    folder: Path, rules: TrainerSettings, task: Any, progress: Progress | None = None, start: Path | None = None
) -> TrainingRun:
    return run_with(CountingBackend, folder, rules, task, progress, start)[0]


def run_with(
    kind: type[Backend],
    folder: Path,
    rules: TrainerSettings,
    task: Any,
    progress: Progress | None = None,
    start: Path | None = None,
) -> tuple[TrainingRun, Backend]:
    """A run, from the adapter in `start` if there is one, and the backend of this kind that it was trained by."""
    model = CountingModel(folder)
    backend = kind(model)
    trainer = Trainer(task, model, backend, rules, max_tokens=8, progress=progress, start=start)
    return asyncio.run(trainer.run()), backend
