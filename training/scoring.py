"""From a finished group to its rewards: the task's own, RULER's, those of a function of the user's, or a weighted sum of them."""

from __future__ import annotations

import hashlib
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import BadInput
from training.functions import load_function
from training.judge import JudgeUse, RulerJudge, read_rubric, require_ruler
from training.settings import TrainerSettings
from training.trajectories import JUDGED

if TYPE_CHECKING:  # settings are checked before anything runs, and art takes seven seconds to import
    import art

    from training.task import Task

RewardFunction = Callable[["art.Trajectory"], float | Awaitable[float]]
"""A reward for one rollout whose verifiable reward and metrics are there already."""


def require_scoring(settings: TrainerSettings, *, keys: bool = True) -> None:
    """Raises `BadInput` when rewards could not be made as the settings say: before anything is spent.

    Without `keys` the judge's are not looked for: the training runs on another machine, which has its own.
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
    if settings.asks_judge:
        require_ruler(settings, keys=keys)


def scoring_sources(settings: TrainerSettings) -> dict[str, str]:
    """What rewards depend on beside the settings: setting -> sha256 of the rubric's text, of the reward function's module."""
    contents = {"ruler_rubric": read_rubric(settings)}
    if settings.reward_function:
        function = load_reward_function(settings)
        contents["reward_function"] = inspect.getsource(inspect.getmodule(function) or function)
    return {setting: hashlib.sha256(content.encode()).hexdigest() for setting, content in contents.items() if content}


def load_reward_function(settings: TrainerSettings) -> RewardFunction:
    """The function that `reward_function` names. Raises `BadInput` when there is none."""
    path = settings.reward_function
    if path is None:
        raise BadInput("scoring with custom rewards needs reward_function=package.module:name")
    return load_function("reward_function", path)


class Scorer:
    """Makes the rewards of a run's groups."""

    def __init__(self, task: Task, settings: TrainerSettings, judge_cache: Path) -> None:
        self._task = task
        self._weights = settings.reward_weights
        self._judge = RulerJudge(settings, judge_cache) if "ruler" in self._weights else None
        self._function = load_reward_function(settings) if "custom" in self._weights else None

    async def score(self, group: art.TrajectoryGroup) -> tuple[art.TrajectoryGroup | None, JudgeUse]:
        """The group with its final rewards, and what the judge took; no group when the judge could not score it.

        The task scores every group, because accuracy is reported however rewards are made. With other sources each rollout has
        its rewards as the metrics `verifiable_reward`, `ruler_reward` and `custom_reward`, and the judge's reason in its log.
        """
        from training.task import UNLABELLED

        group = await self._task.score(group)
        use = JudgeUse()
        if self._judge is None and self._function is None:
            return group, use
        for trajectory in group.trajectories:
            if not trajectory.metadata.get(UNLABELLED):
                trajectory.metrics["verifiable_reward"] = trajectory.reward
        if self._function is not None:
            for trajectory in group.trajectories:
                trajectory.metrics["custom_reward"] = await _call(self._function, trajectory)
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


async def _call(function: RewardFunction, trajectory: art.Trajectory) -> float:
    try:
        result = function(trajectory)
        reward = await result if inspect.isawaitable(result) else result
    except Exception as error:  # whatever the user's function raises
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"reward_function: {function.__name__} raised {type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        ) from error
    if isinstance(reward, bool | int | float) and math.isfinite(reward):
        return float(reward)
    raise BadInput(f"reward_function: {function.__name__} returned {reward!r}, which is not a finite number")
