"""The decisions of the mail agent at which a training run compares replies."""

from __future__ import annotations

from agent.settings import DECISIONS, EMAIL_SEARCH, USUAL_DECISIONS
from training.loop.decisions import compared_decisions
from training.settings import TrainerSettings


def mail_decisions(training: TrainerSettings) -> tuple[str, ...]:
    """Return them in the order of an episode; none for whole episodes. Raises `BadInput` for one that does not exist."""
    return compared_decisions(training, DECISIONS, USUAL_DECISIONS, EMAIL_SEARCH)
