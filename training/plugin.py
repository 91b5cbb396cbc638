"""A task that `run.py` trains and evaluates: what it needs beyond `training.task.Task`.

`task: NAME` chooses the `PLUGIN` in `tasks/NAME/plugin.py`, and `task: package.module:PLUGIN` one outside this project.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, Field

from training.task import Policy, Task

Say = Callable[[str], None]
"""Prints one line for the user."""
Check = tuple[str, Callable[[], str]]
"""Name of a check, and a function that says what it found, or raises BadInput."""


class Attempt(BaseModel):
    """One episode of an evaluation, with its verdict."""

    correct: bool | None
    """None in a task without right and wrong."""
    outcome: str = "finished"
    answer: str | None = None
    reason: str = ""
    turns: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    transcript: list[dict[str, Any]] = Field(default_factory=list)
    measured: dict[str, Any] = Field(default_factory=dict)
    """What figures of the task's own are computed from."""
    sampled_tokens: int = Field(default=0, ge=0, exclude=True)
    """Counted by the metrics of a service."""


class EvaluatedTask(Task, Protocol):
    """A task whose held-out scenarios are evaluated."""

    max_tokens: int
    """Sampled tokens per turn."""

    def test_scenarios(self) -> Sequence[Any]:
        """Return the held-out scenarios."""
        ...

    def described(self, scenario: Any) -> dict[str, str]:
        """Return what reports show of a scenario: `scenario_id`, `kind`, `question` and `reference`."""
        ...

    async def attempt(self, policy: Policy, scenario: Any, *, hosted: bool) -> Attempt:
        """Play one episode; `hosted` if the policy is not behind a server of ours. Raises on failure."""
        ...

    def others(self) -> Mapping[str, Callable[[Any], Awaitable[Attempt | None]]]:
        """Return the rows of an evaluation that ask no policy: name -> attempt at a scenario, None where there is none."""
        return {}

    async def prepare(self, folder: Path) -> str | None:
        """Check the scenarios before a training, and say what was found. Results to keep go to `folder`.

        Raises:
            BadInput: one cannot be trained on.
        """
        return None


class TaskPlugin(ABC):
    """A task as `run.py` sees it. Checks of settings are quick if its module does not import ART; what `opened` yields may."""

    name: str
    """Begins with a letter."""
    title: str
    """Of its reports."""
    unit = "scenarios"
    """What its scenarios are called, in the plural."""
    settings: type[BaseModel]
    decisions: tuple[Sequence[str], Sequence[str]] = ((), ())
    """Decisions that replies can be compared at, and those that are by default."""
    code: Sequence[str] = ()
    """Folders of this project that a training depends on, besides those of the trainer and the plug-in's own module."""

    def model_name(self, settings: Any) -> str:
        """Return the name under which trained versions are registered."""
        return f"{self.name}-agent"

    @abstractmethod
    def scenarios(self, settings: Any) -> Sequence[Any]:
        """Return the scenarios, each a pydantic model with `id` and `split` (train or test).

        Raises:
            BadInput: their source cannot be used.
        """

    def max_turns(self, settings: Any, training: Any) -> int:
        """Return the most replies of an episode."""
        return int(training.max_turns)

    def require(self, settings: Any, training: Any) -> None:  # noqa: B027 - most tasks have nothing to refuse
        """Raise BadInput if settings contradict each other. Reads no data."""

    def checks(
        self, settings: Any, training: Any, scenarios: Sequence[Any], elsewhere: Sequence[str]
    ) -> Iterator[Check]:
        """Yield checks before a run on these scenarios. `elsewhere` are the steps that run in pods."""
        return iter(())

    def identity(self, settings: Any, scenarios: Sequence[Any]) -> Any:
        """Return what makes a training another one, apart from trainer, base model and code. It must be writable as JSON."""
        return [scenario.model_dump(mode="json") for scenario in scenarios]

    def evaluation_identity(self, settings: Any, scenarios: Sequence[Any]) -> Any:
        """Return what makes an evaluation of the same policy another one. It must be writable as JSON."""
        return self.identity(settings, scenarios)

    def described(self, settings: Any) -> dict[str, str]:
        """Return the data of a run: name -> description."""
        return {}

    def sources(self, settings: Any) -> dict[str, str]:
        """Return the settings that name a function: key -> digest of its content."""
        return {}

    def scenario_of(self, settings: Any, question: str) -> Any:
        """Return the scenario of a user's question. Only a task that overrides this can be deployed.

        Raises:
            BadInput: the task can make none of it. The service puts the name of the field before the message.
        """
        raise NotImplementedError

    @abstractmethod
    def opened(self, settings: Any, trained_with: Mapping[str, Any], say: Say) -> AbstractContextManager[EvaluatedTask]:
        """Open the task with the settings that a policy is or was trained with."""
