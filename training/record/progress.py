"""Events of a training run, for consoles and trackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from training.record.history import StepRecord

if TYPE_CHECKING:
    import art


class Progress(Protocol):
    """Receives the events of a training run."""

    def stage(self, description: str, total: int) -> None:
        """Begin a stage of `total` parts."""

    def extend(self, parts: int) -> None:
        """Add `parts` parts to the current stage."""

    def advance(self) -> None:
        """Count one part of the stage as done."""

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        """Take the scored rollouts of a step (split `train`) or of a validation after it (`val`)."""

    def step(self, row: StepRecord) -> None:
        """Take the row of a step that is finished and on disk."""

    def note(self, sentence: str) -> None:
        """Show a sentence about the run."""

    def stopped(self, reason: str, best: str = "") -> None:
        """Report that there will be no further step. `best` names the checkpoint with the best validation, if there was one."""

    def warning(self, sentence: str) -> None:
        """Report a problem that does not end the run. May be called from another thread."""


class ForwardedProgress(Progress):
    """Passes every event on, for subclasses that do more with some."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def stage(self, description: str, total: int) -> None:
        self._progress.stage(description, total)

    def extend(self, parts: int) -> None:
        self._progress.extend(parts)

    def advance(self) -> None:
        self._progress.advance()

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        self._progress.rollouts(groups, split=split, step=step)

    def step(self, row: StepRecord) -> None:
        self._progress.step(row)

    def note(self, sentence: str) -> None:
        self._progress.note(sentence)

    def stopped(self, reason: str, best: str = "") -> None:
        self._progress.stopped(reason, best)

    def warning(self, sentence: str) -> None:
        self._progress.warning(sentence)


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

    def stopped(self, reason: str, best: str = "") -> None:
        pass

    def warning(self, sentence: str) -> None:
        pass
