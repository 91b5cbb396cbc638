"""The decisions at which a run compares single replies, and their figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from training.errors import BadInput
from training.history import AskedQuestion, DecisionFigures
from training.settings import TrainerSettings
from training.task import HasDecisions, Task


def task_decisions(task: Task) -> tuple[str, ...]:
    """Return the decisions of a task; none if it has only whole episodes."""
    return tuple(task.decisions) if isinstance(task, HasDecisions) else ()


def compared_decisions(settings: TrainerSettings, own: Sequence[str], task: str) -> tuple[str, ...]:
    """Return the decisions at which a run compares replies; none if it compares whole episodes.

    `own` are the decisions of the task of this name.

    Raises:
        BadInput: the task has no such decision.
    """
    wanted = settings.decisions
    if wanted is None:
        return tuple(own) if settings.is_verifiable else ()
    for name in wanted:
        if name not in own:
            known = f"its decisions are {', '.join(own)}" if own else "it has none"
            raise BadInput(
                f"decisions: task {task} has no decision {name!r}: {known}; decisions=[] compares whole episodes"
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
