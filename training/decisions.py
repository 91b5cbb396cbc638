"""The decisions at which a run compares single replies, and their figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from training.errors import BadInput
from training.history import AskedQuestion, DecisionFigures
from training.settings import TrainerSettings
from training.task import HasDecisions, Task


def compared_decisions(task: Task, settings: TrainerSettings) -> tuple[str, ...]:
    """Return the decisions at which replies are compared; none if whole episodes are.

    Raises:
        BadInput: the task has no such decision, or the reward needs whole episodes.
    """
    own = tuple(task.decisions) if isinstance(task, HasDecisions) else ()
    wanted = settings.decisions
    at_once = set(settings.reward_weights) == {"verifiable"}
    if wanted is None:
        return own if at_once else ()
    if not wanted:
        return ()
    if not own:
        raise BadInput(
            f"decisions={list(wanted)}: the task {task.name} has none; set decisions=[] to compare whole episodes"
        )
    if unknown := [name for name in wanted if name not in own]:
        raise BadInput(
            f"decisions: {unknown[0]!r} is not one of {', '.join(own)}; or set decisions=[] to compare whole episodes"
        )
    if not at_once:
        raise BadInput(
            f"decisions={list(wanted)}: scoring={settings.scoring} compares whole episodes; set decisions=[], or scoring=verifiable"
        )
    return tuple(name for name in own if name in wanted)


def decision_figures(questions: Sequence[AskedQuestion], min_reward_std: float) -> dict[str, DecisionFigures]:
    """Return the figures of each decision. Groups with a standard deviation above `min_reward_std` have spread."""
    of_decision: defaultdict[str, list[AskedQuestion]] = defaultdict(list)
    for question in questions:
        if question.decision is not None:
            of_decision[question.decision].append(question)
    return {
        decision: DecisionFigures(
            groups=len(groups),
            with_spread=sum(group.reward_std > min_reward_std for group in groups),
            right=statistics.fmean(shares) if shares else None,
        )
        for decision, groups in of_decision.items()
        for shares in [[group.right / group.rollouts for group in groups if group.right is not None]]
    }
