"""What the trainer must be given to train something: a `Task`. The trainer knows no other thing about the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:  # ten seconds that the deployed service does not need
    import art

SUSPECT = "suspect_"
"""How the metrics begin by which a task says that a rollout may be after the reward instead of the task."""

CALL_SEQUENCE = "call_sequence"
"""Metadata of a rollout: its tool calls in order, as one text. The trainer counts how many different ones a group has."""


UNLABELLED = "unlabelled"
"""Metadata of a rollout on a scenario without a reference: the task can neither reward it nor say whether it is correct."""


class RolloutError(RuntimeError):
    """A rollout failed for a reason outside of the program, such as a judge that gives no verdict."""


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

    def demonstrations(self, scenarios: Sequence[Any], limit: int) -> list[art.Trajectory]:
        """At most `limit` expert trajectories of these train scenarios for the warm start, recorded as rollouts are.

        In the order in which they are learnt from: a batch is made of neighbours.
        """
        ...

    async def rollout(self, policy: Policy, scenario: Any) -> art.Trajectory:
        """One episode. `reward` is 0 until `score`; `metrics` and `metadata` say what happened. Raises on failure.

        Too many failures end the run, with one line if they are RolloutError, TimeoutError, OSError or of a provider.

        The trainer's own metrics are `turns`, `sampled_tokens` and, of the whole conversation, `context_tokens`; those that begin
        with `SUSPECT` are true or false and watched by the monitors. By the metadata `scenario_id` and `question` it names an
        example to people. The metadata `CALL_SEQUENCE` is a text that is equal for rollouts which made the same tool calls in
        the same order.
        """
        ...

    async def score(self, group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        """The same group with verifiable rewards and `metrics["correct"]`, as far as it is not `UNLABELLED`."""
        ...


@runtime_checkable
class TellsKinds(Protocol):
    """A task whose scenarios fall into kinds that are about equally hard: what is learnt of one helps to judge the others."""

    def kind(self, scenario: Any) -> str:
        """The kind of a scenario."""
        ...
