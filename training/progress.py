"""What happens in a run, for whoever shows or sends it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from training.history import StepRecord

if TYPE_CHECKING:
    import art


class Progress:
    """What a run tells whoever watches it; the default tells nobody."""

    def stage(self, description: str, total: int) -> None:
        """A stage of `total` parts begins."""

    def extend(self, parts: int) -> None:
        """The stage has so many parts more than it was begun with."""

    def advance(self) -> None:
        """One part of the stage is done."""

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        """The scored rollouts of a step (split `train`) or of a validation after it (`val`)."""

    def step(self, row: StepRecord) -> None:
        """A step is finished and on disk."""

    def note(self, sentence: str) -> None:
        """Something that is worth a line."""

    def stopped(self, reason: str) -> None:
        """There will be no further step."""

    def warning(self, sentence: str) -> None:
        """Something went wrong that does not end the run. May be called from another thread."""
