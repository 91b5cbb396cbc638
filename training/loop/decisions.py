"""The decisions at which a run compares single replies, and their figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from training.errors import BadInput
from training.record.history import DecisionFigures
from training.settings import TrainerSettings
from training.task import DECISION, HasDecisions, Task

if TYPE_CHECKING:
    import art


def decisions_of(task: Task, settings: TrainerSettings) -> tuple[str, ...]:
    """Return the decisions of a task at which a run compares replies; see `compared_decisions`."""
    if isinstance(task, HasDecisions):
        return compared_decisions(settings, task.decisions, task.usual_decisions, task.name)
    return compared_decisions(settings, (), (), task.name)


def compared_decisions(
    settings: TrainerSettings, own: Sequence[str], usual: Sequence[str], task: str
) -> tuple[str, ...]:
    """Return the decisions at which a run compares replies; none if it compares whole episodes.

    `own` are the decisions of the task of this name, `usual` those that it compares by default.

    Raises:
        BadInput: the task has no such decision, or `epochs` limits the run.
    """
    wanted = settings.decisions
    if wanted is None:
        # That W&B's servers return several replies to one request has not been tried.
        usually = settings.is_verifiable and settings.epochs is None and settings.backend != "serverless"
        wanted = tuple(usual) if usually else ()
    for name in wanted:
        if name not in own:
            known = f"its decisions are {', '.join(own)}" if own else "it has none"
            raise BadInput(
                f"decisions: task {task} has no decision {name!r}: {known}; decisions=[] compares whole episodes"
            )
    if wanted and settings.epochs is not None:
        raise BadInput(
            f"epochs={settings.epochs}: a run that compares decisions asks open questions, not all in turn; leave it out, or set "
            "decisions=[]"
        )
    return tuple(name for name in own if name in wanted)


def reward_spread(group: art.TrajectoryGroup) -> float:
    """Return the standard deviation of the rewards of a group."""
    return statistics.pstdev(trajectory.reward for trajectory in group.trajectories)


def decision_figures(groups: Sequence[art.TrajectoryGroup], settings: TrainerSettings) -> dict[str, DecisionFigures]:
    """Return the figures of each decision that groups of replies were compared at.

    The share of right replies is that of the first `probe_rollouts` of each group: see `Trainer`.
    """
    of_decision: defaultdict[str, list[art.TrajectoryGroup]] = defaultdict(list)
    for group in groups:
        if (decision := group.trajectories[0].metadata.get(DECISION)) is not None:
            of_decision[str(decision)].append(group)
    return {
        decision: DecisionFigures(
            groups=len(compared),
            with_spread=sum(reward_spread(group) > settings.min_reward_std for group in compared),
            right=statistics.fmean(
                bool(trajectory.metrics.get("correct"))
                for group in compared
                for trajectory in group.trajectories[: settings.first_rollouts]
            ),
        )
        for decision, compared in of_decision.items()
    }
