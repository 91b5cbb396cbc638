"""The protocol of a task that `run.py` trains and evaluates: what it needs beyond `training.task.Task`.

`tasks/NAME/plugin.py` holds one as `PLUGIN`; `task: NAME` in the settings chooses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, Field

from training.task import Policy, Task

Say = Callable[[str], None]
"""Prints one line for the user."""


class Attempt(BaseModel):
    """One episode of an evaluation, with its verdict."""

    correct: bool
    outcome: str = "finished"
    answer: str | None = None
    reason: str = ""
    turns: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0)
    transcript: list[dict[str, Any]] = Field(default_factory=list)


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
        ...

    async def prepare(self, folder: Path) -> str | None:
        """Check the scenarios before a training, and say what was found. Results to keep go to `folder`.

        Raises:
            BadInput: one cannot be trained on.
        """
        ...


class Scenarios(Protocol):
    """What a plug-in tells of a scenario without opening the task."""

    @property
    def id(self) -> str: ...
    @property
    def split(self) -> str:
        """`train` or `test`."""
        ...


class TaskPlugin(Protocol):
    """A task as `run.py` sees it. Nothing here takes long, and nothing imports ART, except what `opened` yields."""

    name: str
    title: str
    """Of its reports."""
    unit: str
    """What its scenarios are called, in the plural."""
    settings: type[BaseModel]
    decisions: tuple[Sequence[str], Sequence[str]]
    """Decisions that replies can be compared at, and those that are by default."""
    code: Sequence[str]
    """Folders that a training depends on, besides those of the trainer."""

    def model_name(self, settings: Any) -> str:
        """Return the name under which trained versions are registered."""
        ...

    def scenarios(self, settings: Any) -> Sequence[Scenarios]:
        """Return train and test scenarios. Raises BadInput if their source cannot be used."""
        ...

    def max_turns(self, settings: Any, training: Any) -> int:
        """Return the most replies of an episode."""
        ...

    def require(self, settings: Any, training: Any) -> None:
        """Raise BadInput if settings contradict each other. Reads no data."""
        ...

    def checks(
        self, settings: Any, training: Any, elsewhere: Sequence[str]
    ) -> Iterator[tuple[str, Callable[[], str | None]]]:
        """Yield checks before a run: a name, and a function that says what it found, or raises BadInput.

        `elsewhere` are the steps that run in pods.
        """
        ...

    def identity(self, settings: Any) -> Any:
        """Return what makes a run another one, apart from trainer, base model and code. It must be writable as JSON."""
        ...

    def described(self, settings: Any) -> dict[str, str]:
        """Return the data of a run: name -> description."""
        ...

    def sources(self, settings: Any) -> dict[str, str]:
        """Return the settings that name a function: key -> digest of its content."""
        ...

    def opened(self, settings: Any, trained_with: Mapping[str, Any], say: Say) -> AbstractContextManager[EvaluatedTask]:
        """Open the task with the settings that a policy is or was trained with."""
        ...
