"""A toy run whose rollouts, scores and updates happen in an order that the test decides."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import art

import training.loop.trainer
from tests.training.toy_run import CountingBackend, CountingModel, RecordedProgress, ToyTask, settings
from training.loop.trainer import Trainer, TrainingRun
from training.scoring.ruler import JudgeUse
from training.settings import TrainerSettings
from training.task import Policy

WAITS = 300.0
"""Seconds after which something that should have come never will."""


async def comes(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAITS):
        await event.wait()


def version(policy: Policy) -> int:
    return int(policy.model.partition("@")[2])


class Scripted(ToyTask):
    """Says what happens, in order; `play` and `judge` are awaited within each sampled rollout and each group's score."""

    def __init__(self, play: Any = None, judge: Any = None) -> None:
        super().__init__()
        self.events: list[str] = []
        self.versions: dict[int, set[int]] = defaultdict(set)
        """Question -> checkpoints that it was sampled from."""
        self.play, self.judge = play, judge

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        if not policy.temperature:
            self.events.append(f"validate @{version(policy)}")
            await asyncio.sleep(0)
            return await super().rollout(policy, scenario)
        self.events.append(f"play {scenario}")
        self.versions[scenario].add(version(policy))
        if self.play:
            await self.play(policy, scenario)
        return await super().rollout(policy, scenario)

    async def score(self, group: art.TrajectoryGroup) -> tuple[art.TrajectoryGroup, JudgeUse]:
        """Stand in for the run's scorer."""
        question = int(group.trajectories[0].metadata["scenario_id"])
        if self.judge:
            await self.judge(question)
        self.events.append(f"score {question}")
        return group, JudgeUse()

    async def score_alone(self, trajectory: art.Trajectory) -> float:
        return trajectory.reward


class ScriptedBackend(CountingBackend):
    """`update` is awaited within each update, with its number and its questions."""

    def __init__(self, model: CountingModel, events: list[str], update: Any = None) -> None:
        super().__init__(model)
        self.events, self.update = events, update
        self.trained: list[list[int]] = []

    async def train(self, model: Any, groups: Any, *, learning_rate: float, **arguments: Any) -> SimpleNamespace:
        self.trained.append([int(group.trajectories[0].metadata["scenario_id"]) for group in groups])
        number = self.model.step() + 1
        self.events.append(f"update to @{number}")
        if self.update:
            await self.update(number)
        result = await super().train(model, groups, learning_rate=learning_rate, **arguments)
        self.events.append(f"updated to @{number}")
        return result


def run(
    folder: Path, rules: TrainerSettings, task: Scripted, update: Any = None, progress: RecordedProgress | None = None
) -> tuple[TrainingRun, ScriptedBackend]:
    """A run after which nothing is left over in the event loop."""
    model = CountingModel(folder)
    backend = ScriptedBackend(model, task.events, update)

    async def whole() -> TrainingRun:
        try:
            scorer = SimpleNamespace(score=task.score, score_alone=task.score_alone)
            with patch.object(training.loop.trainer, "Scorer", lambda *_: scorer):
                return await Trainer(task, model, backend, rules, max_tokens=8, progress=progress).run()
        finally:
            coroutines = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
            assert not [name for name in coroutines if name.startswith("Gatherer")], "nothing goes on after the run"

    return asyncio.run(whole()), backend


def first_update_after(event: asyncio.Event) -> Callable[[int], Any]:
    """For `run`: the update of step 1, the second checkpoint, takes until then."""

    async def update(number: int) -> None:
        if number == 2:
            await comes(event)

    return update


def ahead(steps: int, **changes: Any) -> TrainerSettings:
    return settings(max_steps_off_policy=steps, **changes)


def questions(folder: Path, **changes: Any) -> list[list[int]]:
    """What each step asks, by a run that gathers nothing ahead."""
    _, backend = run(folder, ahead(0, **changes), Scripted())
    return backend.trained
