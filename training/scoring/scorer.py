"""Compute the rewards of a group: the verifiable rewards of its rollouts, RULER, a function of the user, or a weighted sum."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import BadInput
from training.record.rollout_samples import JUDGED
from training.scoring.ruler import JudgeUse, RulerJudge, read_rubric, require_ruler
from training.scoring.user_functions import load_function, reward_by, source_digest
from training.settings import TrainerSettings
from training.task import UNLABELLED, VERDICT_COST

if TYPE_CHECKING:  # importing art takes seven seconds, too long for a check of the settings
    import art

RewardFunction = Callable[["art.Trajectory"], float | Awaitable[float]]
"""Returns the reward of one rollout, which has its verifiable reward and metrics already."""


def require_scoring(settings: TrainerSettings, *, keys: bool = True) -> None:
    """Raise `BadInput` if rewards cannot be computed with these settings, before anything is spent.

    Without `keys`, API keys of the judge are not checked, because the training runs on another machine.
    """
    weights = settings.reward_weights
    if not weights:
        raise BadInput("blend_weights is empty: name verifiable, ruler or custom with a weight")
    if "custom" in weights:
        load_reward_function(settings)
    elif settings.reward_function is not None:
        raise BadInput(
            f"reward_function={settings.reward_function} would not be asked: set scoring=custom, or scoring=blend with "
            "blend_weights that have custom"
        )
    if set(weights) == {"ruler"} and settings.min_reward_std >= 0.5:
        raise BadInput(
            f"min_reward_std={settings.min_reward_std:g}: RULER's scores are between 0 and 1, so those of a question deviate by at "
            "most 0.5, and no question would be learnt from: set it lower"
        )
    if settings.asks_judge:
        require_ruler(settings, keys=keys)


def scoring_sources(settings: TrainerSettings) -> dict[str, str]:
    """Return the sha256 of the files behind settings that rewards depend on: the rubric and the module of the reward function."""
    rubric = read_rubric(settings)
    sources = {"ruler_rubric": hashlib.sha256(rubric.encode()).hexdigest()} if rubric else {}
    if settings.reward_function:
        sources["reward_function"] = source_digest(load_reward_function(settings))
    return sources


def load_reward_function(settings: TrainerSettings) -> RewardFunction:
    """Import the function that `reward_function` names. Raises `BadInput` if it is missing."""
    path = settings.reward_function
    if path is None:
        raise BadInput("scoring with custom rewards needs reward_function=package.module:name")
    return load_function("reward_function", path)


class Scorer:
    """Computes the rewards of the groups of a run."""

    def __init__(self, settings: TrainerSettings, judge_cache: Path) -> None:
        self._weights = settings.reward_weights
        self._judge = RulerJudge(settings, judge_cache) if "ruler" in self._weights else None
        self._function = load_reward_function(settings) if "custom" in self._weights else None

    async def score(self, group: art.TrajectoryGroup) -> tuple[art.TrajectoryGroup | None, JudgeUse]:
        """Return the group with its final rewards, or None if the judge could not score it, and the use of the judge.

        Rollouts arrive with their verifiable rewards. With other sources each rollout has the metrics
        `verifiable_reward`, `ruler_reward` and `custom_reward`, and the judge's reason in its log.
        """
        use = JudgeUse()
        if self._judge is None and self._function is None:
            return group, use
        for trajectory in group.trajectories:
            if not trajectory.metadata.get(UNLABELLED):
                trajectory.metrics["verifiable_reward"] = trajectory.reward
        if self._function is not None:
            for trajectory in group.trajectories:
                trajectory.metrics["custom_reward"] = await reward_by("reward_function", self._function, trajectory)
        if self._judge is not None:
            scores, use = await self._judge.compare(group)
            if scores is None:
                return None, use
            for trajectory, score in zip(group.trajectories, scores, strict=True):
                trajectory.metrics["ruler_reward"] = score.score
                trajectory.log(f"{JUDGED}{score.explanation}")
        for trajectory in group.trajectories:
            trajectory.reward = sum(
                weight * float(trajectory.metrics[f"{source}_reward"]) for source, weight in self._weights.items()
            )
        return group, use

    async def score_alone(self, trajectory: art.Trajectory) -> float:
        """Return the reward of a rollout without its group: that of all sources but RULER, which only compares.

        With RULER alone it is the verifiable reward.
        """
        if set(self._weights) == {"ruler"}:
            return trajectory.reward
        rewards = {"verifiable": trajectory.reward}
        if self._function is not None:
            rewards["custom"] = await reward_by("reward_function", self._function, trajectory)
        return sum(weight * rewards[source] for source, weight in self._weights.items() if source in rewards)


def with_verdicts(cost: float | None, trajectories: Iterable[art.Trajectory]) -> float | None:
    """Add the cost of the verdicts on these rollouts to `cost`; None where nothing was paid or no price is known."""
    paid = [float(t.metrics[VERDICT_COST]) for t in trajectories if VERDICT_COST in t.metrics]
    return (cost or 0.0) + sum(paid) if paid else cost
