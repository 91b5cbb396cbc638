"""Events of a training run, for consoles and trackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from training.history import StepRecord

if TYPE_CHECKING:
    import art


class Progress(Protocol):
    """Receives the events of a training run."""

    def stage(self, description: str, total: int) -> None:
        """A stage of `total` parts begins."""

    def extend(self, parts: int) -> None:
        """The current stage has `parts` more parts."""

    def advance(self) -> None:
        """One part of the stage is done."""

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        """The scored rollouts of a step (split `train`) or of a validation after it (`val`)."""

    def step(self, row: StepRecord) -> None:
        """A step is finished and on disk."""

    def note(self, sentence: str) -> None:
        """A sentence about the run that deserves a line."""

    def stopped(self, reason: str) -> None:
        """There will be no further step."""

    def warning(self, sentence: str) -> None:
        """Something went wrong that does not end the run. May be called from another thread."""


class NoProgress(Progress):
    """Ignores every event."""

    def stage(self, description: str, total: int) -> None:
        pass

    def extend(self, parts: int) -> None:
        pass

    def advance(self) -> None:
        pass

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        pass

    def step(self, row: StepRecord) -> None:
        pass

    def note(self, sentence: str) -> None:
        pass

    def stopped(self, reason: str) -> None:
        pass

    def warning(self, sentence: str) -> None:
        pass
