"""Check what settings need of the e-mail task: reference answers and decisions, before a run spends anything."""

from __future__ import annotations

from collections.abc import Sequence

from agent.settings import DECISIONS, EMAIL_SEARCH
from environment.models import Scenario
from training.decisions import compared_decisions
from training.errors import BadInput
from training.settings import TrainerSettings


def require_labels(settings: TrainerSettings, scenarios: Sequence[Scenario]) -> None:
    """Raise BadInput if rewards or validation need answers that the train questions lack."""
    train = [scenario for scenario in scenarios if scenario.split == "train"]
    unlabelled = sum(not scenario.labelled for scenario in train)
    if not unlabelled:
        return
    share = f"{unlabelled} of {len(train)} train questions have no reference answer"
    if "verifiable" in settings.reward_weights:
        raise BadInput(
            f"scoring={settings.scoring}: {share}: set scoring=ruler or custom, or unlabelled_questions=false"
        )
    if settings.validates and settings.validation_metric != "win_rate":
        raise BadInput(
            f"validation_metric={settings.validation_metric}: {share}: set validation_metric=win_rate, or validate_every=0"
        )
    if settings.warm_start_demonstrations and unlabelled == len(train):
        raise BadInput(
            f"demonstrations={settings.demonstrations}: {share}, so none can be demonstrated: set demonstrations=0"
        )


def email_decisions(settings: TrainerSettings) -> tuple[str, ...]:
    """Return the decisions at which a run compares replies; see `compared_decisions`."""
    return compared_decisions(settings, DECISIONS, EMAIL_SEARCH)
