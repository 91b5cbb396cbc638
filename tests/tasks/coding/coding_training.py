"""Training runs of a tiny model on bugs, in a process of their own where they are to be killed."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import art

from tasks.coding.built_in import built_in_scenarios
from tasks.coding.scenarios import CodingScenario
from tasks.coding.settings import CodingSettings
from tasks.coding.task import CodingTask
from tests.training import injection
from training.loop.trainer import TrainingRun
from training.task import Policy

POINTS = {**injection.POINTS, "rollout": lambda: injection.on_call(5, VariedCoding, "rollout", injection.die_before)}


class VariedCoding(CodingTask):
    """Rewards that differ within every group, so that every step trains: the tiny model repairs nothing."""

    def __init__(self, sandbox_url: str) -> None:
        settings = CodingSettings(max_context_tokens=4000)
        scenarios = built_in_scenarios(train=12, test=3, seed=1)
        super().__init__(scenarios, settings, sandbox_url, max_tokens=injection.MAX_TOKENS)

        self.numbers = itertools.cycle(range(injection.SETTINGS.rollouts_per_group))

    async def rollout(self, policy: Policy, scenario: CodingScenario) -> art.Trajectory:
        number = next(self.numbers) if policy.temperature else 0
        trajectory = await super().rollout(policy, scenario)
        trajectory.reward = float(number)
        return trajectory


def train(folder: Path, base: Path, sandbox_url: str, progress: Any = None, **settings: object) -> TrainingRun:
    changed = injection.SETTINGS.model_copy(update={"max_context": 4096, **settings})
    return injection.train(folder, base, changed, progress, VariedCoding(sandbox_url))


def train_until_killed(folder: Path, base: Path, sandbox_url: str, point: str) -> None:
    """In a child process: the points patch this process's classes."""
    POINTS[point]()
    train(folder, base, sandbox_url)
