"""What the trainer must be given to train something: a `Task`. The trainer knows no other thing about the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import art
from pydantic import BaseModel, ConfigDict, Field


class Policy(BaseModel):
    """A model behind an OpenAI-compatible endpoint, and how to sample from it."""

    model_config = ConfigDict(frozen=True)

    base_url: str
    model: str
    api_key: str = "none"
    temperature: float = Field(default=1.0, ge=0)
    """0 decodes greedily."""
    max_tokens: int = Field(default=96, ge=1)
    """Sampled tokens per turn."""


class Task(Protocol):
    """Scenarios of one kind and everything that turns them into scored trajectories."""

    name: str

    def train_scenarios(self) -> Sequence[Any]:
        """The scenarios to train on, in a fixed order."""
        ...

    def demonstrations(self, limit: int) -> list[art.Trajectory]:
        """At most `limit` expert trajectories for the warm start, in the form in which rollouts are recorded."""
        ...

    async def rollout(self, policy: Policy, scenario: Any) -> art.Trajectory:
        """One episode. `reward` is 0 until `score`; `metrics` and `metadata` say what happened. Raises on failure."""
        ...

    async def score(self, group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        """The same group with verifiable rewards and `metrics["correct"]`."""
        ...
